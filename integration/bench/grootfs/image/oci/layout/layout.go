package layout

// Package imagespec holds the two texts that pass between a Garden client and an image plugin: the rootfs URL
// that says which image a container starts from (Ref), and the runtime Spec that the plugin answers with.
//
// It is pure: it opens no file and knows no kernel, so that a scheduler can import it to build rootfs URLs.
//
//	baggageclaim://VOLUME[/SUB/PATH][?cache=KEY&cache-path=/ABS[&cache-promote=on-commit|always|never]]…
//	file:///ABS/DIR[?…]
//	/ABS/DIR[?…]
//
// gdn hands the URL on as url.Parse(…).String() with the first "#" turned into ":". Ref.String writes URLs that
// mean the same before and after that; a URL written by hand has to write "#" as %23, or it names another image.
package imagespec

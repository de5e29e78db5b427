package durable

import (
	"encoding/json"
	"unicode/utf8"
)

// Text is a string of any bytes, such as a path, that a record gives back as it was. In JSON it is a string where that can hold it, and else an object
// with the bytes in base64: encoding/json replaces what is not UTF-8.
type Text string

// textBytes is a Text that is not UTF-8.
type textBytes struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements [json.Marshaler].
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(textBytes{[]byte(t)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (t *Text) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err == nil {
		*t = Text(s)
		return nil
	}
	var raw textBytes
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*t = Text(raw.Base64)
	return nil
}

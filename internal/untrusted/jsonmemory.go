package untrusted

const (
	// objectBytes is about how much memory an object in a discovery takes beside its text while it is
	// decoded, and valueBytes any other value.
	objectBytes = 500
	valueBytes  = 40
	// elementBytes is about how much an element of a list takes: a group, or a version of one, gets
	// maps of its own. The text of the element does not matter: a decoder makes an object of null,
	// too.
	elementBytes = 2000
)

// lists are the lists in a discovery whose elements take less, by name, with what they take.
var lists = map[string]int64{"resources": objectBytes, "subresources": objectBytes,
	"verbs": valueBytes, "shortNames": valueBytes, "categories": valueBytes}

// longestName is how much of a name is kept: one byte more than the longest of lists.
const longestName = len("subresources") + 1

// jsonMemory estimates how much memory a JSON text takes when it is decoded, beside the text
// itself. The text comes in parts. What is no JSON has some result. The zero value is ready to use.
type jsonMemory struct {
	open     []jsonPlace // what is not closed yet, from the outside to the inside
	inText   bool
	escaped  bool // the byte before was a backslash in a text
	inScalar bool // a number, true, false or null
	isName   bool // the text is the name of a member
	name     []byte
}

// jsonPlace is where the next value or name stands: in an object, or in a list whose elements take
// so much memory.
type jsonPlace int64

const (
	beforeName  jsonPlace = -1 - iota // in an object
	beforeValue                       // in an object, after the name
)

// add returns the estimate for the next part of the text.
func (m *jsonMemory) add(part []byte) (memory int64) {
	for _, c := range part {
		switch {
		case m.inText:
			m.text(c)
		case c == '"':
			if m.inText = true; m.place() == beforeName {
				m.isName, m.name = true, m.name[:0]
			} else {
				memory += m.value(valueBytes)
			}
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			m.inScalar = false
		case c == '{':
			memory += m.value(objectBytes)
			m.open = append(m.open, beforeName)
		case c == '[':
			memory += m.value(valueBytes)
			element, known := lists[string(m.name)]
			if !known || m.place() != beforeValue {
				element = elementBytes
			}
			m.open = append(m.open, jsonPlace(element))
		case c == '}' || c == ']':
			if m.inScalar = false; len(m.open) > 0 {
				m.open = m.open[:len(m.open)-1]
			}
		case c == ':':
			m.set(beforeName, beforeValue)
		case c == ',':
			m.inScalar = false
			m.set(beforeValue, beforeName)
		case !m.inScalar:
			m.inScalar = true
			memory += m.value(valueBytes)
		}
	}
	return memory
}

// text takes a byte of a text.
func (m *jsonMemory) text(c byte) {
	switch {
	case m.escaped:
		m.escaped = false
	case c == '\\':
		m.escaped = true
	case c == '"':
		m.inText, m.isName = false, false
		return
	}
	if m.isName && len(m.name) < longestName {
		m.name = append(m.name, c)
	}
}

// value returns the estimate for a value, which takes alone as much in an object.
func (m *jsonMemory) value(alone int64) int64 {
	if element := int64(m.place()); element >= 0 {
		return max(element, alone)
	}
	return alone
}

func (m *jsonMemory) place() jsonPlace {
	if len(m.open) == 0 {
		return beforeValue
	}
	return m.open[len(m.open)-1]
}

// set changes the place within an object.
func (m *jsonMemory) set(from, to jsonPlace) {
	if i := len(m.open) - 1; i >= 0 && m.open[i] == from {
		m.open[i] = to
	}
}

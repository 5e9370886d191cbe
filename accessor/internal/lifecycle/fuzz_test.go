package lifecycle

import "testing"

// FuzzMachine passes random inputs to the machine, and checks the invariants on each step. A byte
// selects an input of the exploration; inputs that are not possible are left out.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25})
	f.Fuzz(func(t *testing.T, choices []byte) {
		w := start
		for _, choice := range choices {
			in := &inputs[int(choice)%len(inputs)]
			if in.possible != nil && !in.possible(&w) {
				continue
			}
			next, broken := w.step(in)
			for _, violation := range broken {
				t.Error(violation)
			}
			w = next
		}
	})
}

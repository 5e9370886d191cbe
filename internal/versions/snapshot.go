package versions

// Snapshot is what a list says about the state of all objects that it selects.
type Snapshot struct {
	Version string // of the list
	Objects int
	newest  string // the latest version of an object
}

// Add records the version of an object.
func (s *Snapshot) Add(version string) {
	s.newest = Later(version, s.newest)
	s.Objects++
}

// ReachedBy reports whether a watch of the same objects has reached the list. The watch has seen
// every change up to a version, and perhaps some after it. It knows so many objects.
//
// A watch does not say that nothing has changed: its version is that of the latest change, until a
// bookmark comes, a minute later. But every change leaves an object of that version, except for a
// deletion. So a watch that has the version of the newest object lacks deletions only, and has as
// many objects as the list if it lacks none.
func (s *Snapshot) ReachedBy(version string, objects int) bool {
	return Reached(version, s.Version) || Reached(version, s.newest) && objects == s.Objects
}

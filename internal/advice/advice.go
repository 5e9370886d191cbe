package advice

// For returns what to do about a reason, or "" for a reason that the page does not have.
func For(reason string) string { return reasons[reason] }

// Package demo is the tour behind "latchkey demo": five extensions with five ServiceAccounts of
// different rights on a real control plane, and what happens to their connections.
//
// # Setup
//
// The programs of the control plane must be there; "make run" sees to it.
//
// # Usage
//
// [Run] starts everything, walks through [Steps], and returns an error that names the first step
// that did not see what it expected. Options.Break leaves out the cause of one step, to show that
// the tour can fail.
//
// # Considerations
//
// The content operator runs with the rights of config/rbac and nothing more; the admission policy
// of config/admission is installed. Output is plain lines, for terminals and logs alike. Probes and
// retries are quicker than the defaults so that a person does not wait.
package demo

// Package demo implements the tour of "latchkey demo". The tour runs five extensions on a real
// control plane. Their five ServiceAccounts have different permissions, and the tour shows what
// happens to their connections.
//
// # Setup
//
// The programs of the control plane must be installed. "make run" installs them.
//
// # Usage
//
// [Run] starts everything and walks through [Steps]. Run returns an error that names the first step
// that did not see its expected result. Options.Break skips the action of one step, to show that
// the tour can fail.
//
// # Considerations
//
// The content operator has the permissions of config/rbac and no others. The admission policy of
// config/admission is installed. The output consists of plain lines, for terminals and logs alike.
// Probes and retries are faster than the defaults so that a person does not wait.
package demo

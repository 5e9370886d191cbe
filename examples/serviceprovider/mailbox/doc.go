// Package mailbox is a complete service provider, for example. A tenant orders a Mailbox on the
// onboarding cluster. The provider obtains access to the tenant's control plane and makes a
// ConfigMap there, which stands for the mailbox.
//
// docs/serviceprovider.md explains it step by step, and "make run-serviceprovider ONCE=1" runs it
// on control planes of its own.
package mailbox

package apiserver

import (
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Errors of NewExtensionAPIServer, InstallStore and Run. errors.Is finds them.
var (
	// ErrStarted: InstallStore was called after Run, or Run a second time.
	ErrStarted = errors.New("the server has been started")
	// ErrNilStore: the store is nil.
	ErrNilStore = errors.New("the store is nil")
	// ErrDuplicateStore: another store serves the resource, or another resource has the kind.
	ErrDuplicateStore = errors.New("another store serves the resource or its kind")
	// ErrNoLister: the store does not implement Lister for the list type.
	ErrNoLister = errors.New("the store is no Lister")
	// ErrNoGetter: the store implements Updater or Deleter, and not Getter.
	ErrNoGetter = errors.New("a store with an Updater or a Deleter needs a Getter")
	// ErrOtherSignature: the store has a method of a verb's name, which is not that of the verb's
	// interface; or the method is one of a pointer to the store, and the store was passed by value.
	ErrOtherSignature = errors.New("a method of the store has the name of a verb and another signature")
	// ErrNotAList: the list type has no items of the object type.
	ErrNotAList = errors.New("the list type is no list of the object type")
)

// statusOf returns the error that the library sends. The library looks only at the error itself, so
// the status of a wrapped error is taken out, with the text of the whole.
func statusOf(err error) error {
	if _, ok := err.(apierrors.APIStatus); ok {
		return err
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	full := status.Status()
	full.Message = err.Error()
	return &apierrors.StatusError{ErrStatus: full}
}

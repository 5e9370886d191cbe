package accessor

import (
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/fence"
)

// errUnknown is the cause of NotStarted if the extension is unknown.
var errUnknown = errors.New("the extension is unknown here: the manager has not started, or the extension " +
	"is not seen yet, deleted, or filtered out, or this replica is not the leader")

// errGivenUp is the cause of NotOwned for requests that have not started when an extension is given
// up.
var errGivenUp = errors.WithMessage(fence.ErrClosed, "this replica is giving up the extension")

// errNotOwned is the cause of NotOwned for an extension that is unknown here.
var errNotOwned = errors.New("this replica does not have the extension: another one has it, or none has it yet")

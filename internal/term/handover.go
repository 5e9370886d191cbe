package term

import "errors"

// ErrHandedOver is the error of reading an answer to a request whose sender may not act any more,
// while others may send requests as the same identity: one of them is to go on with a watch.
var ErrHandedOver = errors.New("the sender may not act any more: send the request again")

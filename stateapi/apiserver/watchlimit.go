package apiserver

import (
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxWatchTime bounds a watch, whatever timeoutSeconds a client asks for. It is the longest time
// that an API server gives to a watch that asks for none.
const maxWatchTime = time.Hour

// watchLimit counts the open watches of a server.
type watchLimit struct {
	perUser, total int

	mu     sync.Mutex
	open   int            // guarded by mu
	byUser map[string]int // guarded by mu; only users with watches
}

// begin counts a watch. The caller calls release when the watch has ended, which may be more than
// once.
func (l *watchLimit) begin(user string) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.byUser[user] >= l.perUser:
		return nil, apierrors.NewTooManyRequests(
			fmt.Sprintf("user %q has %d watches open, as many as one user may have", user, l.perUser), 1)
	case l.open >= l.total:
		return nil, apierrors.NewTooManyRequests(
			fmt.Sprintf("%d watches are open, as many as this server serves", l.total), 1)
	}
	if l.byUser == nil {
		l.byUser = map[string]int{}
	}
	l.open++
	l.byUser[user]++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		if l.byUser[user]--; l.byUser[user] == 0 {
			delete(l.byUser, user)
		}
	}), nil
}

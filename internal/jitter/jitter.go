package jitter

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Step advances a backoff and returns its next delay. random is in [0,1), and decides how much of
// backoff.Jitter the delay gets.
func Step(backoff *wait.Backoff, random float64) time.Duration {
	share := backoff.Jitter
	backoff.Jitter = 0
	delay := backoff.Step()
	backoff.Jitter = share
	return delay + time.Duration(random*max(share, 0)*float64(delay))
}

package workpool

import (
	"sync"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

const (
	// maxJobs bounds the connects and probes that run at the same time.
	maxJobs = 100
	// maxDoubtfulJobs bounds the jobs of targets that are not known to answer. Targets that hang
	// thus leave room for other targets. minDoubtfulJobs of maxJobs are reserved for such targets,
	// so that they make progress.
	maxUnconfirmedJobs = 50
	minUnconfirmedJobs = 10
	// maxJobsPerTarget bounds the jobs of one target.
	maxJobsPerTarget = 10
	// maxConsecutiveUrgent is how many urgent jobs of a target run before one other job of the
	// target.
	maxConsecutiveUrgent = 4
	// maxConsecutiveOthers is how many other jobs of a target run before one that is deferred.
	maxConsecutiveOthers = 9
)

// Priority says which jobs of a target run first.
type Priority int

// Urgent jobs run before the Normal ones, and Deferred ones after them.
const (
	Normal Priority = iota
	Urgent
	Deferred
)

// Pool runs connects and probes of all its shares. The number of running jobs is bounded in total
// and per target, and Submit never blocks. The urgent jobs of a target run before its other jobs,
// and the deferred ones after them; otherwise jobs run in order. A job must not wait for anything
// but its answers: others wait for its place. Targets that have room take turns: first the targets
// that answer, then those that were not tried, then those that may not answer.
type Pool struct {
	mu      sync.Mutex
	running [reachabilities]int  // guarded by mu
	queues  map[string]*jobQueue // guarded by mu; by target; only targets with waiting or running jobs
	// guarded by mu; in order of turns; entries of queues that have moved are skipped
	turns [reachabilities][]*jobQueue
}

// Share is one user's part of a pool: its jobs, and when they end. The limits are the pool's.
type Share struct {
	pool    *Pool
	mu      sync.Mutex
	closed  bool           // guarded by mu
	running sync.WaitGroup // Add is called under mu
}

// Share returns another share of the pool.
func (p *Pool) Share() *Share { return &Share{pool: p} }

// Submit runs job soon, unless the share is closed before. reachability returns what is known about
// the target; reachability must not block.
func (s *Share) Submit(target string, reachability func() connstate.Reachability, priority Priority,
	job func()) {
	s.pool.submit(target, reachability, priority, func() {
		if s.begin() {
			defer s.running.Done()
			job()
		}
	})
}

// begin reports whether a job may run, and counts it.
func (s *Share) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// Close drops the waiting jobs of the share, and returns when none of its jobs runs any more. The
// caller must cancel the running jobs before.
func (s *Share) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
}

// reachabilities is the number of values of connstate.Reachability.
const reachabilities = connstate.Unresponsive + 1

// notQueued is the turn of a queue that does not wait for a turn.
const notQueued connstate.Reachability = -1

// hasRoom reports whether a job of a target with that reachability may run.
func hasRoom(r connstate.Reachability, running [reachabilities]int) bool {
	unconfirmed := running[connstate.Unknown] + running[connstate.Unresponsive]
	if r == connstate.Reachable {
		return running[connstate.Reachable]+max(unconfirmed, minUnconfirmedJobs) < maxJobs
	}
	return running[connstate.Reachable]+unconfirmed < maxJobs && unconfirmed < maxUnconfirmedJobs
}

// jobQueue holds the jobs of one target. The pool's mu guards all fields.
type jobQueue struct {
	target            string
	reachability      func() connstate.Reachability // of the target, as far as known
	urgent            []func()
	waiting           []func()
	deferred          []func()
	consecutiveUrgent int // urgent jobs that were taken since the last other job
	consecutiveOthers int // jobs that were taken since the last deferred one
	running           int
	turn              connstate.Reachability // the list in which the queue waits for its turn
}

// take removes and returns the next job. There must be one.
func (q *jobQueue) take() (job func()) {
	if len(q.deferred) > 0 && (q.consecutiveOthers >= maxConsecutiveOthers || len(q.urgent)+len(q.waiting) == 0) {
		q.consecutiveOthers = 0
		return removeFirst(&q.deferred)
	}
	q.consecutiveOthers++
	if len(q.urgent) > 0 && (q.consecutiveUrgent < maxConsecutiveUrgent || len(q.waiting) == 0) {
		q.consecutiveUrgent++
		return removeFirst(&q.urgent)
	}
	q.consecutiveUrgent = 0
	return removeFirst(&q.waiting)
}

func removeFirst(jobs *[]func()) (job func()) {
	job, (*jobs)[0] = (*jobs)[0], nil // release the job for garbage collection
	*jobs = (*jobs)[1:]
	return job
}

func (q *jobQueue) hasWork() bool { return len(q.urgent)+len(q.waiting)+len(q.deferred) > 0 }

func (p *Pool) submit(target string, reachability func() connstate.Reachability, priority Priority, job func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q, ok := p.queues[target]
	if !ok {
		if p.queues == nil {
			p.queues = map[string]*jobQueue{}
		}
		q = &jobQueue{target: target, turn: notQueued}
		p.queues[target] = q
	}
	// another target at the same address does not make this one doubtful
	if q.reachability == nil || q.reachability() != connstate.Reachable {
		q.reachability = reachability
	}
	switch priority {
	case Urgent:
		q.urgent = append(q.urgent, job)
	case Deferred:
		q.deferred = append(q.deferred, job)
	default:
		q.waiting = append(q.waiting, job)
	}
	p.giveTurnLocked(q)
	p.dispatchLocked()
}

// giveTurnLocked appends a queue that has work and room to the list for its reachability, once. A
// queue whose target has answered meanwhile moves to an earlier list.
func (p *Pool) giveTurnLocked(q *jobQueue) {
	if !q.hasWork() || q.running >= maxJobsPerTarget {
		return
	}
	wanted := q.reachability()
	if q.turn != notQueued && q.turn <= wanted {
		return
	}
	q.turn = wanted
	p.turns[wanted] = append(p.turns[wanted], q)
}

// nextLocked removes and returns the queue whose turn it is, nil if there is none or no room.
func (p *Pool) nextLocked() (*jobQueue, connstate.Reachability) {
	for r := range reachabilities {
		for hasRoom(r, p.running) && len(p.turns[r]) > 0 {
			q := p.turns[r][0]
			p.turns[r][0] = nil
			p.turns[r] = p.turns[r][1:]
			if q.turn == r {
				return q, r
			}
		}
	}
	return nil, notQueued
}

func (p *Pool) dispatchLocked() {
	for {
		q, r := p.nextLocked()
		if q == nil {
			return
		}
		q.turn = notQueued
		if !q.hasWork() || q.running >= maxJobsPerTarget {
			continue
		}
		job := q.take()
		q.running++
		p.running[r]++
		p.giveTurnLocked(q)
		go p.run(q, r, job)
	}
}

func (p *Pool) run(q *jobQueue, r connstate.Reachability, job func()) {
	job()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[r]--
	q.running--
	if q.running == 0 && !q.hasWork() {
		delete(p.queues, q.target)
	}
	p.giveTurnLocked(q)
	p.dispatchLocked()
}

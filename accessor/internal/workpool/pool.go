package workpool

import (
	"sync"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

const (
	// maxJobs bounds the connects and probes that run at the same time.
	maxJobs = 100
	// maxDoubtfulJobs bounds those at targets that are not known to answer, so that any number of
	// targets that hang leave room for the others; minDoubtfulJobs of the room is theirs alone, so
	// that they get their chance.
	maxDoubtfulJobs = 50
	minDoubtfulJobs = 10
	// maxJobsPerTarget bounds those at one target.
	maxJobsPerTarget = 10
	// urgentInARow is how many urgent jobs of a target run before one that is not.
	urgentInARow = 4
)

// Pool runs connects and probes: bounded in all and per target, never blocking who submits. Within
// a target urgent jobs run before others, and else in order. Targets that have room take turns:
// those that answer before those that were not tried, and these before those that may not answer.
type Pool struct {
	mu      sync.Mutex
	closed  bool
	running [reachabilities]int  // guarded by mu
	queues  map[string]*jobQueue // guarded by mu; targets with jobs that wait or run
	// guarded by mu; in order of their turns; entries of queues that have moved are skipped
	turns [reachabilities][]*jobQueue
	done  sync.WaitGroup
}

// reachabilities is how many there are.
const reachabilities = connstate.Unresponsive + 1

// nowhere is where a queue waits that does not wait for a turn.
const nowhere connstate.Reachability = -1

// hasRoom reports whether a job at a target of that reachability may run.
func hasRoom(r connstate.Reachability, running [reachabilities]int) bool {
	notProven := running[connstate.Unknown] + running[connstate.Unresponsive]
	if r == connstate.Reachable {
		return running[connstate.Reachable]+max(notProven, minDoubtfulJobs) < maxJobs
	}
	return running[connstate.Reachable]+notProven < maxJobs && notProven < maxDoubtfulJobs
}

// jobQueue is the jobs of one target. All of it is guarded by the pool's mu.
type jobQueue struct {
	target       string
	reachability func() connstate.Reachability // where it belongs, as far as is known
	urgent       []func()
	waiting      []func()
	inARow       int // urgent ones that were taken since the last that was not
	running      int
	turn         connstate.Reachability // where it waits for its turn
}

func (q *jobQueue) take() (job func()) {
	if len(q.urgent) > 0 && (q.inARow < urgentInARow || len(q.waiting) == 0) {
		q.inARow++
		job, q.urgent[0] = q.urgent[0], nil // what has run is not kept
		q.urgent = q.urgent[1:]
		return job
	}
	q.inARow = 0
	job, q.waiting[0] = q.waiting[0], nil
	q.waiting = q.waiting[1:]
	return job
}

func (q *jobQueue) hasWork() bool { return len(q.urgent)+len(q.waiting) > 0 }

// Submit runs job soon. After Close it does nothing. reachability says what is known about the
// target; it must not block.
func (p *Pool) Submit(target string, reachability func() connstate.Reachability, urgent bool, job func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	q, ok := p.queues[target]
	if !ok {
		if p.queues == nil {
			p.queues = map[string]*jobQueue{}
		}
		q = &jobQueue{target: target, turn: nowhere}
		p.queues[target] = q
	}
	// another one at the same address does not make it doubtful
	if q.reachability == nil || q.reachability() != connstate.Reachable {
		q.reachability = reachability
	}
	if urgent {
		q.urgent = append(q.urgent, job)
	} else {
		q.waiting = append(q.waiting, job)
	}
	p.giveTurnLocked(q)
	p.dispatchLocked()
}

// giveTurnLocked puts a queue that has work and room where it takes its turn, once. One whose
// target has turned out to answer moves up.
func (p *Pool) giveTurnLocked(q *jobQueue) {
	if !q.hasWork() || q.running >= maxJobsPerTarget {
		return
	}
	wanted := q.reachability()
	if q.turn != nowhere && q.turn <= wanted {
		return
	}
	q.turn = wanted
	p.turns[wanted] = append(p.turns[wanted], q)
}

// nextLocked takes the queue whose turn it is, nil if there is none or no room.
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
	return nil, nowhere
}

func (p *Pool) dispatchLocked() {
	for {
		q, r := p.nextLocked()
		if q == nil {
			return
		}
		q.turn = nowhere
		if !q.hasWork() || q.running >= maxJobsPerTarget {
			continue
		}
		job := q.take()
		q.running++
		p.running[r]++
		p.giveTurnLocked(q)
		p.done.Add(1)
		go p.run(q, r, job)
	}
}

func (p *Pool) run(q *jobQueue, r connstate.Reachability, job func()) {
	defer p.done.Done()
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

// Close drops what waits and returns when nothing runs any more. The caller has cancelled what
// runs.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.turns = [reachabilities][]*jobQueue{}
	for _, q := range p.queues {
		q.urgent, q.waiting = nil, nil
	}
	p.mu.Unlock()
	p.done.Wait()
}

package accessor

import "sync"

const (
	// maxJobs bounds the connects and probes that run at the same time.
	maxJobs = 100
	// maxJobsPerTarget bounds those at one target, so that a target that hangs leaves room for the others.
	maxJobsPerTarget = 10
)

// pool runs connects and probes: bounded in all and per target, never blocking who submits. Within a target jobs
// run in order; among targets that have room they take turns.
type pool struct {
	mu      sync.Mutex
	closed  bool
	running int
	queues  map[string]*jobQueue // guarded by mu; targets with jobs that wait or run
	turns   []*jobQueue          // guarded by mu; queues that have a job and room, in order of their turns
	done    sync.WaitGroup
}

// jobQueue is the jobs of one target.
type jobQueue struct {
	target  string
	waiting []func()
	running int
	inTurns bool
}

// submit runs job soon. After close it does nothing.
func (p *pool) submit(target string, job func()) {
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
		q = &jobQueue{target: target}
		p.queues[target] = q
	}
	q.waiting = append(q.waiting, job)
	p.giveTurnLocked(q)
	p.dispatchLocked()
}

func (p *pool) giveTurnLocked(q *jobQueue) {
	if !q.inTurns && len(q.waiting) > 0 && q.running < maxJobsPerTarget {
		q.inTurns = true
		p.turns = append(p.turns, q)
	}
}

func (p *pool) dispatchLocked() {
	for p.running < maxJobs && len(p.turns) > 0 {
		q := p.turns[0]
		p.turns = p.turns[1:]
		q.inTurns = false
		job := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.running++
		p.running++
		p.giveTurnLocked(q)
		p.done.Add(1)
		go p.run(q, job)
	}
}

func (p *pool) run(q *jobQueue, job func()) {
	defer p.done.Done()
	job()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	q.running--
	if q.running == 0 && len(q.waiting) == 0 {
		delete(p.queues, q.target)
	}
	p.giveTurnLocked(q)
	p.dispatchLocked()
}

// close drops what waits and returns when nothing runs any more. The caller has cancelled what runs.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.turns = nil
	for _, q := range p.queues {
		q.waiting = nil
	}
	p.mu.Unlock()
	p.done.Wait()
}

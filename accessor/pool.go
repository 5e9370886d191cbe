package accessor

import "sync"

const (
	// maxJobs bounds the connects and probes that run at the same time.
	maxJobs = 100
	// maxDoubtfulJobs bounds those at targets of which nobody knows that they answer, so that any number of targets
	// that hang leave room for the others; minDoubtfulJobs of the room is theirs alone, so that they get their chance.
	maxDoubtfulJobs = 50
	minDoubtfulJobs = 10
	// maxJobsPerTarget bounds those at one target.
	maxJobsPerTarget = 10
	// urgentInARow is how many urgent jobs of a target run before one that is not.
	urgentInARow = 4
)

// pool runs connects and probes: bounded in all and per target, never blocking who submits. Within a target urgent jobs
// run before others, and else in order. Targets that have room take turns: those that answer before those that were not
// tried, and these before those that may not answer.
type pool struct {
	mu      sync.Mutex
	closed  bool
	running [lanes]int           // guarded by mu
	queues  map[string]*jobQueue // guarded by mu; targets with jobs that wait or run
	turns   [lanes][]*jobQueue   // guarded by mu; in order of their turns; entries of queues that have left the lane are skipped
	done    sync.WaitGroup
}

// lane is where the queue of a target waits for its turn.
type lane int

const (
	proven   lane = iota // it answers
	untried              // nobody knows
	doubtful             // it did not answer
	lanes
	nowhere lane = -1
)

// hasRoom reports whether a job of that lane may run.
func (l lane) hasRoom(running [lanes]int) bool {
	notProven := running[untried] + running[doubtful]
	if l == proven {
		return running[proven]+max(notProven, minDoubtfulJobs) < maxJobs
	}
	return running[proven]+notProven < maxJobs && notProven < maxDoubtfulJobs
}

// jobQueue is the jobs of one target. All of it is guarded by the pool's mu.
type jobQueue struct {
	target  string
	wants   func() lane // where it belongs, as far as is known
	urgent  []func()
	waiting []func()
	inARow  int // urgent ones that were taken since the last that was not
	running int
	lane    lane
}

func (q *jobQueue) take() (job func()) {
	if len(q.urgent) > 0 && (q.inARow < urgentInARow || len(q.waiting) == 0) {
		q.inARow++
		job, q.urgent = q.urgent[0], q.urgent[1:]
		return job
	}
	q.inARow = 0
	job, q.waiting = q.waiting[0], q.waiting[1:]
	return job
}

func (q *jobQueue) hasWork() bool { return len(q.urgent)+len(q.waiting) > 0 }

// submit runs job soon. After close it does nothing. wants says what is known about the target; it must not block.
func (p *pool) submit(target string, wants func() lane, urgent bool, job func()) {
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
		q = &jobQueue{target: target, lane: nowhere}
		p.queues[target] = q
	}
	if q.wants == nil || q.wants() != proven { // another one at the same address does not make it doubtful
		q.wants = wants
	}
	if urgent {
		q.urgent = append(q.urgent, job)
	} else {
		q.waiting = append(q.waiting, job)
	}
	p.giveTurnLocked(q)
	p.dispatchLocked()
}

// giveTurnLocked puts a queue that has work and room where it takes its turn, once. One whose target has turned out to
// answer moves up.
func (p *pool) giveTurnLocked(q *jobQueue) {
	if !q.hasWork() || q.running >= maxJobsPerTarget {
		return
	}
	wanted := q.wants()
	if q.lane != nowhere && q.lane <= wanted {
		return
	}
	q.lane = wanted
	p.turns[wanted] = append(p.turns[wanted], q)
}

// nextLocked takes the queue whose turn it is, nil if there is none or no room.
func (p *pool) nextLocked() (*jobQueue, lane) {
	for l := range lanes {
		for l.hasRoom(p.running) && len(p.turns[l]) > 0 {
			q := p.turns[l][0]
			p.turns[l] = p.turns[l][1:]
			if q.lane == l {
				return q, l
			}
		}
	}
	return nil, nowhere
}

func (p *pool) dispatchLocked() {
	for {
		q, l := p.nextLocked()
		if q == nil {
			return
		}
		q.lane = nowhere
		if !q.hasWork() || q.running >= maxJobsPerTarget {
			continue
		}
		job := q.take()
		q.running++
		p.running[l]++
		p.giveTurnLocked(q)
		p.done.Add(1)
		go p.run(q, l, job)
	}
}

func (p *pool) run(q *jobQueue, l lane, job func()) {
	defer p.done.Done()
	job()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[l]--
	q.running--
	if q.running == 0 && !q.hasWork() {
		delete(p.queues, q.target)
	}
	p.giveTurnLocked(q)
	p.dispatchLocked()
}

// close drops what waits and returns when nothing runs any more. The caller has cancelled what runs.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.turns = [lanes][]*jobQueue{}
	for _, q := range p.queues {
		q.urgent, q.waiting = nil, nil
	}
	p.mu.Unlock()
	p.done.Wait()
}

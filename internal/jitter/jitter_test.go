package jitter

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/wait"
)

func TestStep(t *testing.T) {
	g := NewWithT(t)
	b := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.5, Steps: 10}
	g.Expect(Step(&b, 0)).To(Equal(time.Second))
	g.Expect(Step(&b, 0.5)).To(Equal(2500 * time.Millisecond))
	g.Expect(b.Jitter).To(Equal(0.5))
	b.Jitter = -1
	g.Expect(Step(&b, 0.5)).To(Equal(4 * time.Second))
}

package strangers

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

// A flood of tokens that prove nothing locks out neither a token that was accepted, nor a first
// sign-in from another address.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		gate := New(20, 40)
		_, ok := gate.Allow("good", "192.0.2.7:1")
		g.Expect(ok).To(BeTrue())
		gate.Accepted("good")
		allowed, good, first := 0, 0, 0
		for second := range 60 {
			for n := range 200 {
				if _, ok := gate.Allow(fmt.Sprint("bad ", second, n), "192.0.2.1:1000"); ok {
					allowed++
				}
			}
			known, ok := gate.Allow("good", "192.0.2.7:2")
			g.Expect(known).To(BeTrue())
			if ok {
				good++
			}
			if _, ok := gate.Allow(fmt.Sprint("first ", second), "192.0.2.8"); ok {
				first++
			}
			time.Sleep(time.Second)
		}
		g.Expect(allowed).To(BeNumerically("<=", 60*10+20), "half of the rate for an address")
		g.Expect(good).To(Equal(60))
		g.Expect(first).To(Equal(60))
	})
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		gate := New(20, 40)
		count := func(address func(n int) string) (allowed int) {
			time.Sleep(time.Minute)
			for n := range 1000 {
				if _, ok := gate.Allow(fmt.Sprint("token ", n), address(n)); ok {
					allowed++
				}
			}
			return allowed
		}
		g.Expect(count(func(n int) string { return fmt.Sprintf("192.0.2.%d:80", n%200) })).To(Equal(40), "many addresses")
		g.Expect(count(func(int) string { return "" })).To(Equal(40), "no address")
		g.Expect(count(func(int) string { return "192.0.2.201:80" })).To(Equal(20))
		g.Expect(count(func(n int) string { return fmt.Sprintf("[2001:db8::%x]:80", n) })).To(Equal(20), "one network")
		g.Expect(count(func(int) string { return "::ffff:192.0.2.202" })).To(Equal(20))

		gate.Accepted("flood") // one token may not use up what all have
		allowed := 0
		for range 1000 {
			if known, ok := gate.Allow("flood", ""); known && ok {
				allowed++
			}
		}
		g.Expect(allowed).To(Equal(acceptedBurst))
		gate.Accepted("flood")
		_, ok := gate.Allow("flood", "")
		g.Expect(ok).To(BeFalse(), "it keeps its rate")
		time.Sleep(time.Minute)
		allowed = 0
		for n := range 1000 { // many tokens that are accepted may not use up everything either
			gate.Accepted(fmt.Sprint("own ", n))
			if _, ok := gate.Allow(fmt.Sprint("own ", n), ""); ok {
				allowed++
			}
		}
		g.Expect(allowed).To(Equal(80))
		gate.Accepted("flood")
		gate.Refused("flood")
		known, _ := gate.Allow("flood", "")
		g.Expect(known).To(BeFalse())
		gate.Accepted("flood")
		time.Sleep(acceptedTime + time.Second)
		known, _ = gate.Allow("flood", "")
		g.Expect(known).To(BeFalse())
	})
}

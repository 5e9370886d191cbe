package stateapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/internal/statechanges"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
)

// benchConnections is how many connections the benchmarks have, each with two scopes and a watch.
const benchConnections = 10_000

// manyConnections is a ClusterCache that has only states.
type manyConnections struct {
	clustercache.ClusterCache

	hub    statechanges.Hub
	mu     sync.RWMutex
	states map[client.ObjectKey]clustercache.ConnectionState // guarded by mu
}

func newManyConnections() *manyConnections {
	m := &manyConnections{states: map[client.ObjectKey]clustercache.ConnectionState{}}
	for i := range benchConnections {
		m.set(i, true)
	}
	return m
}

// set connects or disconnects a connection.
func (m *manyConnections) set(i int, isConnected bool) {
	state := connected()
	state.Extension = client.ObjectKey{Name: fmt.Sprintf("tenant-%05d", i)}
	state.UID = types.UID(fmt.Sprintf("uid-%05d", i))
	state.Identity.Username = "system:serviceaccount:" + state.Extension.Name + ":deployer"
	if !isConnected {
		state.Phase, state.Reason, state.DisconnectedSince = clustercache.PhaseDisconnected, clustercache.ReasonUnauthorized,
			time.Now()
	}
	m.mu.Lock()
	m.states[state.Extension] = state
	m.mu.Unlock()
	m.hub.Changed(state.Extension)
}

func (m *manyConnections) GetConnectionState(_ context.Context,
	key client.ObjectKey) (clustercache.ConnectionState, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	state, known := m.states[key]
	return state, known
}

func (m *manyConnections) GetHealthCheckingState(ctx context.Context,
	key client.ObjectKey) clustercache.HealthCheckingState {
	state, _ := m.GetConnectionState(ctx, key)
	return state.Health
}

func (m *manyConnections) SubscribeStates(ctx context.Context, f func([]client.ObjectKey)) {
	m.hub.Subscribe(ctx, nil, func() (keys []client.ObjectKey) {
		m.mu.RLock()
		defer m.mu.RUnlock()
		for key := range m.states {
			keys = append(keys, key)
		}
		return keys
	}, f)
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// served is a state API of many connections, and a client of it.
type served struct {
	connections *manyConnections
	client      *http.Client
	url         string
	stored      float64 // bytes that the state API keeps for a connection with its scopes
}

// startServed serves until b ends.
func startServed(b *testing.B) *served {
	b.Helper()
	klog.SetLogger(logr.Discard())
	s := &served{connections: newManyConnections()}
	before := heap()
	authority, err := certs.NewAuthority("bench")
	must(b, err)
	certificate, key, err := authority.Issue(certs.Request{Hosts: []string{"localhost"}, ValidFor: time.Hour})
	must(b, err)
	content, err := dynamiccertificates.NewStaticCertKeyContent("bench", certificate, key)
	must(b, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	options := apiserver.ExtensionAPIServerOptions{
		Certificate: content,
		Listener:    listener,
		Authorizer:  authorizerfactory.NewAlwaysAllowAuthorizer(),
		Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "bench"}}, true, nil
		}),
	}
	api, err := New(s.connections, Options{Server: options})
	must(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Start(ctx) }()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}}
	s.client, s.url = &http.Client{Transport: transport}, "https://"+listener.Addr().String()+
		"/apis/state.latchkey.dev/v1alpha1/connections"
	b.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		must(b, <-ended)
	})
	must(b, wait.PollUntilContextTimeout(b.Context(), time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return s.serves(), nil }))
	s.stored = float64(heap()-before) / benchConnections
	return s
}

// serves reports whether the server answers, which it does when it has all connections.
func (s *served) serves() bool {
	resp, err := s.client.Get(s.url + "?limit=1")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// list reads a list, and returns its size in bytes.
func (s *served) list(b *testing.B, query string) int64 {
	b.Helper()
	resp, err := s.client.Get(s.url + query)
	must(b, err)
	defer resp.Body.Close()
	size, err := io.Copy(io.Discard, resp.Body)
	must(b, err)
	if resp.StatusCode != http.StatusOK {
		b.Fatal(resp.Status)
	}
	return size
}

// heap returns the bytes that are reachable.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// BenchmarkList lists 10,000 connections: whole, as kubectl asks for them (a table in pages of
// 500), and only those that are not connected.
func BenchmarkList(b *testing.B) {
	s := startServed(b)
	for i := range 10 {
		s.connections.set(i, false)
	}
	for name, query := range map[string]string{"Whole": "", "Disconnected": "?fieldSelector=status.state%3DDisconnected"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			size := int64(0)
			for b.Loop() {
				size = s.list(b, query)
			}
			b.ReportMetric(float64(size), "answer-B")
			b.ReportMetric(s.stored, "stored-B/connection")
		})
	}
}

// BenchmarkWatch measures from a change of a connection until a client has the event, with ten
// clients that watch all 10,000.
func BenchmarkWatch(b *testing.B) {
	s := startServed(b)
	const clients = 10
	var events [clients]*json.Decoder
	for i := range events {
		resp, err := s.client.Get(s.url + "?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&" +
			"resourceVersionMatch=NotOlderThan")
		must(b, err)
		b.Cleanup(func() { _ = resp.Body.Close() })
		events[i] = json.NewDecoder(resp.Body)
		for range benchConnections + 1 { // and the bookmark
			must(b, events[i].Decode(&struct{}{}))
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.connections.set(i%benchConnections, i/benchConnections%2 == 1)
		for _, client := range events {
			must(b, client.Decode(&struct{}{}))
		}
	}
}

package e2e

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// sibling is another extension of a sequence, which names one of its ServiceAccounts for good.
type sibling struct {
	name, account string
	uid           types.UID // "" if it does not exist
}

// pastReader is a reader that a connection gave out.
type pastReader struct {
	name  string
	epoch int64
	uid   types.UID // of the extension
	client.Reader
}

// addSiblings adds two extensions or three, none of which exists: one for each ServiceAccount of
// the sequence, and perhaps another one. Only the first ServiceAccount may read Pods.
func (s *sequence) addSiblings() {
	for n, account := range []string{"a", "b", "a"}[:2+s.rng.IntN(2)] {
		s.siblings = append(s.siblings, &sibling{
			name:    fmt.Sprintf("%s-sibling%d", s.name, n),
			account: s.name + "-" + account,
		})
	}
}

func (s *sequence) siblingObject(of *sibling) client.Object {
	e := extension(s.namespace, of.account)
	e.SetName(of.name)
	return e
}

func (s *sequence) siblingObjects() (objects []client.Object) {
	for _, of := range s.siblings {
		objects = append(objects, s.siblingObject(of))
	}
	return objects
}

// toggle creates a sibling, or deletes it if it exists.
func (s *sequence) toggle(of *sibling) error {
	if of.uid != "" {
		s.did("delete %s", of.name)
		of.uid = ""
		return s.admin("deleting a sibling", func(ctx context.Context) error {
			return admin.Delete(ctx, s.siblingObject(of))
		})
	}
	s.did("create %s, naming %s", of.name, of.account)
	object := s.siblingObject(of)
	if err := s.createObject(object); err != nil {
		return err
	}
	of.uid = object.GetUID()
	return nil
}

// wrongSiblings describes the first difference between the connections of the siblings and the
// model, "" if there is none.
func (s *sequence) wrongSiblings() string {
	for _, of := range s.siblings {
		state, known := s.o.GetConnectionState(context.Background(), key(of.name))
		switch {
		case of.uid == "" && !known:
			continue
		case of.uid == "" || !known || state.UID != of.uid:
			return fmt.Sprintf("%s is known %t with UID %s, not %q", of.name, known, state.UID, of.uid)
		}
		if wrong := s.wrongIdentity(of.name, state, of.account); wrong != "" {
			return wrong
		}
	}
	return ""
}

// remember keeps a reader, unless there is one of that connection.
func (s *sequence) remember(reader pastReader) {
	for _, past := range s.past {
		if past.name == reader.name && past.epoch == reader.epoch && past.uid == reader.uid {
			return
		}
	}
	s.past = append(s.past, reader)
}

// wrongReads describes what an extension reads that its own identity may not, or may and cannot; ""
// if there is nothing. Readers of connections that have ended must fail. The connections match the
// model, and nothing changes them meanwhile but the API server that restarts.
func (s *sequence) wrongReads() string {
	for _, of := range append([]*sibling{{name: s.name, account: s.account, uid: s.uid}}, s.siblings...) {
		if of.uid == "" || s.accounts[of.account] == "" {
			continue
		}
		reader, err := s.o.GetReader(context.Background(), key(of.name))
		state, _ := s.o.GetConnectionState(context.Background(), key(of.name))
		if err != nil {
			return fmt.Sprintf("%s: %v", of.name, err)
		}
		if state.UID != of.uid {
			return of.name + " is another extension"
		}
		err = reader.List(context.Background(), &corev1.PodList{}, client.InNamespace(s.namespace))
		switch allowed := of.account == s.name+"-a"; {
		case allowed && err != nil:
			return fmt.Sprintf("%s may list pods: %v", of.name, err)
		case !allowed && err == nil:
			message := of.name + " read what its identity may not"
			s.late.Store(&message) // no later read makes up for this
			return message
		case !allowed && !apierrors.IsForbidden(err):
			return fmt.Sprintf("%s may not list pods: %v", of.name, err)
		}
		s.remember(pastReader{of.name, state.Epoch, state.UID, reader})
	}
	for _, past := range s.past {
		state, known := s.o.GetConnectionState(context.Background(), key(past.name))
		if known && state.UID == past.uid && state.Epoch == past.epoch {
			continue
		}
		err := past.List(context.Background(), &corev1.PodList{}, client.InNamespace(s.namespace))
		if !errors.Is(err, clustercache.ErrNotConnected) {
			return fmt.Sprintf("a reader of epoch %d of %s still reads: %v", past.epoch, past.name, err)
		}
	}
	return ""
}

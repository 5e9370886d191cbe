package lightinformer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// source is an API server for one informer. It has one watch at most.
type source struct {
	streaming bool // streams lists

	mu      sync.Mutex
	version int                          // guarded by mu
	objects map[string]*corev1.ConfigMap // guarded by mu
	watch   *watch.RaceFreeFakeWatcher   // guarded by mu; nil for none
	paused  bool                         // guarded by mu; the watch receives nothing
}

func newSource(streaming bool) *source {
	return &source{streaming: streaming, version: 1, objects: map[string]*corev1.ConfigMap{}}
}

func (s *source) IsWatchListSemanticsUnSupported() bool { return !s.streaming }

func (s *source) List(metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		list.Items = append(list.Items, *s.objects[name].DeepCopy())
	}
	return list, nil
}

func (s *source) Watch(options metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch, s.paused = watch.NewRaceFreeFake(), false
	if options.SendInitialEvents != nil && *options.SendInitialEvents {
		for _, name := range slices.Sorted(maps.Keys(s.objects)) {
			s.watch.Add(s.objects[name].DeepCopy())
		}
		s.watch.Action(watch.Bookmark, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.Itoa(s.version),
			Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	return s.watch, nil
}

// put creates or changes an object.
func (s *source) put(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	object, exists := s.objects[name]
	if exists {
		object = object.DeepCopy()
	} else {
		object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: "n",
			Name:      name,
			UID:       types.UID(fmt.Sprint("uid-", s.version)),
		}}
	}
	object.ResourceVersion = strconv.Itoa(s.version)
	s.objects[name] = object
	if s.watch == nil || s.paused {
		return
	}
	if exists {
		s.watch.Modify(object.DeepCopy())
	} else {
		s.watch.Add(object.DeepCopy())
	}
}

func (s *source) delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object, exists := s.objects[name]
	if !exists {
		return
	}
	s.version++
	delete(s.objects, name)
	if s.watch != nil && !s.paused {
		object = object.DeepCopy()
		object.ResourceVersion = strconv.Itoa(s.version)
		s.watch.Delete(object)
	}
}

// pause makes the watch receive nothing more.
func (s *source) pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = true
}

// expire ends the watch, because its version is too old.
func (s *source) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := apierrors.NewResourceExpired("too old").Status()
	s.watch.Error(&status)
}

// close ends the watch without an error.
func (s *source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch.Stop()
}

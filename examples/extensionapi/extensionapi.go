package extensionapi

import (
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/latchkey-dev/latchkey/examples/extensionapi/v1alpha1"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
)

// Store keeps reservations.
type Store struct {
	*apiserver.MemoryStore[*v1alpha1.Reservation, *v1alpha1.ReservationList]
}

var _ apiserver.Store[*v1alpha1.Reservation, *v1alpha1.ReservationList] = Store{}

var resource = v1alpha1.GroupVersion.WithResource("reservations").GroupResource()

// NewStore returns an empty store.
func NewStore() Store {
	return Store{apiserver.NewMemoryStore[*v1alpha1.Reservation, *v1alpha1.ReservationList](
		apiserver.MemoryStoreOptions[*v1alpha1.Reservation]{
			Resource: resource,
			Fields: map[string]func(*v1alpha1.Reservation) string{
				"spec.room": func(r *v1alpha1.Reservation) string { return r.Spec.Room },
			},
		})}
}

// Create implements apiserver.Creater.
func (s Store) Create(ctx apiserver.Context, r *v1alpha1.Reservation, options *metav1.CreateOptions) (
	*v1alpha1.Reservation, error) {
	if r.Spec.Room == "" {
		return nil, apierrors.NewBadRequest("spec.room is empty")
	}
	var dryRun *v1alpha1.Reservation
	stored, err := s.Modify(ctx.Namespace, r.Name, func(current *v1alpha1.Reservation, found bool) (
		*v1alpha1.Reservation, bool, error) {
		if found {
			return nil, false, apierrors.NewAlreadyExists(resource, r.Name)
		}
		if isDryRun(options.DryRun) {
			dryRun = r
			return nil, false, errDryRun
		}
		return r, true, nil
	})
	return result(stored, dryRun, err)
}

// Update implements apiserver.Updater.
func (s Store) Update(ctx apiserver.Context, r *v1alpha1.Reservation, options *metav1.UpdateOptions) (
	*v1alpha1.Reservation, error) {
	var dryRun *v1alpha1.Reservation
	stored, err := s.Modify(ctx.Namespace, r.Name, func(current *v1alpha1.Reservation, found bool) (
		*v1alpha1.Reservation, bool, error) {
		switch {
		case !found:
			return nil, false, apierrors.NewNotFound(resource, r.Name)
		case r.ResourceVersion != "" && r.ResourceVersion != current.ResourceVersion:
			return nil, false, apierrors.NewConflict(resource, r.Name, errors.New("the reservation has changed"))
		case isDryRun(options.DryRun):
			dryRun = r
			return nil, false, errDryRun
		}
		return r, true, nil
	})
	return result(stored, dryRun, err)
}

// Delete implements apiserver.Deleter.
func (s Store) Delete(ctx apiserver.Context, name string, options *metav1.DeleteOptions) error {
	_, err := s.Modify(ctx.Namespace, name, func(current *v1alpha1.Reservation, found bool) (
		*v1alpha1.Reservation, bool, error) {
		switch p := options.Preconditions; {
		case !found:
			return nil, false, apierrors.NewNotFound(resource, name)
		case p != nil && p.UID != nil && *p.UID != current.UID,
			p != nil && p.ResourceVersion != nil && *p.ResourceVersion != current.ResourceVersion:
			return nil, false, apierrors.NewConflict(resource, name, errors.New("the reservation has changed"))
		case isDryRun(options.DryRun):
			return nil, false, errDryRun
		}
		return current, false, nil
	})
	if errors.Is(err, errDryRun) {
		return nil
	}
	return err
}

// errDryRun ends a dry run, so that nothing is stored.
var errDryRun = errors.New("a dry run stores nothing")

func isDryRun(dryRun []string) bool { return slices.Contains(dryRun, metav1.DryRunAll) }

func result(stored, dryRun *v1alpha1.Reservation, err error) (*v1alpha1.Reservation, error) {
	if errors.Is(err, errDryRun) {
		return dryRun, nil
	}
	return stored, err
}

// NewServer returns a server that serves the store's reservations.
func NewServer(store any, options apiserver.ExtensionAPIServerOptions) (*apiserver.ExtensionAPIServer, error) {
	scheme := runtime.NewScheme()
	if err := apiserver.AddToScheme(scheme); err != nil {
		return nil, err
	}
	options.GetOpenAPIDefinitions = v1alpha1.GetOpenAPIDefinitions
	server, err := apiserver.NewExtensionAPIServer(scheme, serializer.NewCodecFactory(scheme), options)
	if err != nil {
		return nil, err
	}
	return server, apiserver.InstallStore(server, &v1alpha1.Reservation{}, &v1alpha1.ReservationList{}, "reservations",
		"reservation", v1alpha1.GroupVersion.WithKind("Reservation"), store, apiserver.Namespaced(),
		apiserver.ShortNames("rsv"), apiserver.FieldSelectors("spec.room"), apiserver.Columns(
			apiserver.Column[*v1alpha1.Reservation]{
				Name: "Room",
				Cell: func(r *v1alpha1.Reservation) any { return r.Spec.Room },
			},
			apiserver.Column[*v1alpha1.Reservation]{
				Name: "Seats",
				Type: "integer",
				Cell: func(r *v1alpha1.Reservation) any { return int64(r.Spec.Seats) },
			},
		))
}

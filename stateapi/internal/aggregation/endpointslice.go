package aggregation

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// managedBy is the label by which the controllers of Kubernetes leave an EndpointSlice alone.
const managedBy = "state-api.latchkey.dev"

func sliceName(service string) string { return service + "-leader" }

// endpointSlice returns the EndpointSlice by which a Service without a selector leads to an
// address. It ends with the Service.
func endpointSlice(service *corev1.Service, address netip.Addr, port int32) *discoveryv1.EndpointSlice {
	kind := discoveryv1.AddressTypeIPv4
	if address.Unmap().Is6() {
		kind = discoveryv1.AddressTypeIPv6
	}
	name := "" // an endpoint has the name of the Service's port
	if len(service.Spec.Ports) > 0 {
		name = service.Spec.Ports[0].Name
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace,
			Name:      sliceName(service.Name),
			Labels:    map[string]string{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: managedBy},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1",
				Kind:       "Service",
				Name:       service.Name,
				UID:        service.UID,
			}},
		},
		AddressType: kind,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{address.Unmap().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: new(corev1.ProtocolTCP)}},
	}
}

// leadsTo reports whether an EndpointSlice has the address and the port.
func leadsTo(slice *discoveryv1.EndpointSlice, address netip.Addr, port int32) bool {
	return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
		return slices.Contains(e.Addresses, address.Unmap().String())
	}) && slices.ContainsFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
		return p.Port != nil && *p.Port == port
	})
}

package targets

import (
	"context"

	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"
)

// partialDiscovery notes for which groups a discovery failed. package restmapper leaves them out: a
// group whose API server answers 503 for a moment would not exist.
type partialDiscovery struct {
	discovery.DiscoveryInterfaceWithContext
	failed map[schema.GroupVersion]error
}

// ServerGroupsAndResourcesWithContext implements discovery.DiscoveryInterfaceWithContext.
func (p *partialDiscovery) ServerGroupsAndResourcesWithContext(ctx context.Context) ([]*v1.APIGroup,
	[]*v1.APIResourceList, error) {
	// The client's method of this name would ask for everything again because of one group.
	groups, resources, err := discovery.ServerGroupsAndResourcesWithContext(ctx, p.DiscoveryInterfaceWithContext)
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err); ok {
		p.failed = failed
	}
	return groups, resources, err
}

// carryOver returns the groups with what the last discovery found of those that failed now, and the
// failures of the groups of which nothing is known. last may be nil.
func carryOver(last *kinds, groups []*restmapper.APIGroupResources, failed map[schema.GroupVersion]error) (
	all []*restmapper.APIGroupResources, unknown map[string]error) {
	byName := map[string]*restmapper.APIGroupResources{}
	for _, group := range groups {
		byName[group.Group.Name] = group
	}
	unknown = map[string]error{}
	for version, failure := range failed {
		earlier := versionOf(last, version)
		if earlier == nil {
			unknown[version.Group] = failure
			continue
		}
		group, known := byName[version.Group]
		if !known {
			group = &restmapper.APIGroupResources{
				Group:              v1.APIGroup{Name: version.Group},
				VersionedResources: map[string][]v1.APIResource{},
			}
			byName[version.Group] = group
			groups = append(groups, group)
		}
		group.VersionedResources[version.Version] = earlier.VersionedResources[version.Version]
		if !hasVersion(group, version.Version) {
			discovered := v1.GroupVersionForDiscovery{GroupVersion: version.String(), Version: version.Version}
			group.Group.Versions = append(group.Group.Versions, discovered)
		}
		if group.Group.PreferredVersion.Version == "" {
			group.Group.PreferredVersion = earlier.Group.PreferredVersion
		}
	}
	return groups, unknown
}

// versionOf returns the group of the last discovery, if it has the version.
func versionOf(last *kinds, version schema.GroupVersion) *restmapper.APIGroupResources {
	if last == nil {
		return nil
	}
	for _, group := range last.groups {
		if group.Group.Name == version.Group && group.VersionedResources[version.Version] != nil {
			return group
		}
	}
	return nil
}

func hasVersion(group *restmapper.APIGroupResources, version string) bool {
	for _, known := range group.Group.Versions {
		if known.Version == version {
			return true
		}
	}
	return false
}

// trim leaves out what a mapper does not need, because targets keep the groups.
func trim(groups []*restmapper.APIGroupResources) {
	for _, group := range groups {
		for version, resources := range group.VersionedResources {
			trimmed := make([]v1.APIResource, len(resources))
			for i, r := range resources {
				trimmed[i] = v1.APIResource{
					Name:         r.Name,
					SingularName: r.SingularName,
					Namespaced:   r.Namespaced,
					Group:        r.Group,
					Version:      r.Version,
					Kind:         r.Kind,
				}
			}
			group.VersionedResources[version] = trimmed
		}
	}
}

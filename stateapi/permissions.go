package stateapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// permissionsOf returns a record as the API has it, nil for none.
func permissionsOf(record *clustercache.PermissionRecord) *v1alpha1.PermissionRecord {
	if record == nil {
		return nil
	}
	return &v1alpha1.PermissionRecord{
		Username:   record.Username,
		Source:     record.Source,
		Used:       usesOf(record.Used),
		Refused:    usesOf(record.Refused),
		Incomplete: record.Incomplete,
	}
}

func usesOf(uses []clustercache.PermissionUse) (list []v1alpha1.PermissionUse) {
	for _, use := range uses {
		list = append(list, v1alpha1.PermissionUse{
			Verb:           use.Verb,
			Group:          use.Group,
			Resource:       use.Resource,
			Subresource:    use.Subresource,
			NonResourceURL: use.NonResourceURL,
			Namespace:      use.Namespace,
			AnyNamespace:   use.AnyNamespace,
			Names:          use.Names,
			AnyName:        use.AnyName,
			Count:          use.Count,
			First:          timeOf(use.First),
			Last:           metav1.NewTime(use.Last),
		})
	}
	return list
}

// refusedOf returns how many permissions were refused, nil without a record.
func refusedOf(record *clustercache.PermissionRecord) *int32 {
	if record == nil {
		return nil
	}
	return new(int32(len(record.Refused)))
}

// numberOf returns a number for a table, nothing for none.
func numberOf(number *int32) any {
	if number == nil {
		return nil
	}
	return int64(*number)
}

package clustercache

import (
	"time"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// PermissionOptions configure what is known of the permissions that identities use.
type PermissionOptions struct {
	// Record keeps, for each extension, a record of the permissions that its requests used, and of
	// those that it was refused: ConnectionState.Permissions. It takes up to 4 KiB for each
	// extension. A request whose permission is on record takes no memory for that. Names of objects
	// are in it, and those who may see states see them.
	//
	// With Record, extension sources also deliver an event when something is granted that was
	// refused, to a request or by CheckPermissions: so a controller need not retry. What is refused
	// is asked again with SelfSubjectAccessReviews, outside of Client.QPS: some seconds after the
	// refusal, within seconds after a change of RBAC with CacheOptions.WatchRBAC, and in any case
	// after 80 to 100 % of AccessReviewInterval. Where no review can tell, as of RBAC's verb
	// escalate, the event comes whenever it is time to ask. A refusal counts for an hour, and then
	// there is an event, too. Nothing is asked that was not refused.
	Record bool
}

// PermissionRecord has what an extension's identity used and was refused, in requests that its
// connection sent to the API server and that it answered, those of informers among them. Where
// extensions share an informer (SharedCache), one of them has its list and watch: see Scopes for
// what each reads. Discovery, and reviews about the identity itself, are on record only if they
// were refused, because the default roles give them to each user. An answer that may have come
// before the authorizer was asked is not on record: none at all, 401, 429 and 5xx.
//
// The record lasts as long as the extension (its UID) is connected as the same user of the same API
// server, reconnects included, and ends with the process, or when another replica takes over. It is
// bounded: of more than 16 objects of a resource in a namespace it has no names, and where it gets
// too large it has no names, or no namespaces, of what takes the most memory. It has room for about
// a dozen resources with seven verbs each, or 24 with one; subresources count as resources.
type PermissionRecord struct {
	// Username is whose permissions these are. It may be another one than that of Identity, until
	// the extension has connected as that.
	Username string `json:"username"`
	// Source is where the credential came from, as in ConnectionState. The record is about another
	// one than that of the state until the extension has connected with that.
	Source string `json:"source,omitempty"`
	// Used are the permissions that requests used, sorted by group, resource, namespace and verb. A
	// request that failed for another reason, for example a conflict or a quota, used them, too.
	Used []PermissionUse `json:"used,omitempty"`
	// Refused are those that the API server's authorizer denied less than an hour ago, and has not
	// granted since; also what CheckPermissions found missing. Of objects without a name on record
	// a grant is not known, so these stay for the hour. An apply that would create an object may be
	// refused the verb create.
	Refused []PermissionUse `json:"refused,omitempty"`
	// Incomplete says that the record had no room for some permissions.
	Incomplete bool `json:"incomplete,omitempty"`
}

// PermissionUse is a permission in the words of RBAC, and how it was used or refused.
type PermissionUse struct {
	// Verb, Group (empty for the core group), Resource and Subresource are those of a rule of a
	// Role. Some verbs can only be refused: "escalate" for a role with permissions that the
	// identity does not have, "bind" for a binding of such a role (Names has the binding), and
	// those that begin with "impersonate-on:serviceaccount:", which the user lacks who
	// impersonates.
	Verb        string `json:"verb"`
	Group       string `json:"group,omitempty"`
	Resource    string `json:"resource,omitempty"`
	Subresource string `json:"subresource,omitempty"`
	// NonResourceURL is set instead of a resource for requests about none.
	NonResourceURL string `json:"nonResourceURL,omitempty"`
	// Namespace is that of the objects. It is empty for resources without namespaces, and for
	// requests about all namespaces: these need a ClusterRoleBinding. AnyNamespace says that the
	// requests were about several namespaces, one at a time, which are not on record.
	Namespace    string `json:"namespace,omitempty"`
	AnyNamespace bool   `json:"anyNamespace,omitempty"`
	// Names are those of the objects, sorted. It is empty if a request named none, as those that
	// list and create do, and with AnyName: of these objects there were too many.
	Names   []string `json:"names,omitempty"`
	AnyName bool     `json:"anyName,omitempty"`
	// Count is the number of requests, First the time of the first (zero if refused), and Last that
	// of the latest, in full seconds. The refusals count that came within an hour of each other.
	Count int64     `json:"count"`
	First time.Time `json:"first,omitzero"`
	Last  time.Time `json:"last"`
}

// permissionRecordOf returns the public form of a record.
func permissionRecordOf(record *accessor.PermissionRecord) *PermissionRecord {
	if record == nil {
		return nil
	}
	return &PermissionRecord{
		Username:   record.Username,
		Source:     record.Source,
		Used:       permissionUsesOf(record.Used),
		Refused:    permissionUsesOf(record.Refused),
		Incomplete: !record.Complete,
	}
}

func permissionUsesOf(uses []permissions.Use) (public []PermissionUse) {
	for _, use := range uses {
		public = append(public, PermissionUse{
			Verb:           use.Verb,
			Group:          use.Group,
			Resource:       use.Resource,
			Subresource:    use.Subresource,
			NonResourceURL: use.Path,
			Namespace:      use.Namespace,
			AnyNamespace:   use.AnyNamespace,
			AnyName:        use.AnyName,
			Names:          use.Names,
			Count:          use.Count,
			First:          use.First,
			Last:           use.Last,
		})
	}
	return public
}

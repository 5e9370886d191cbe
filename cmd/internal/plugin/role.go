package plugin

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	"github.com/spf13/pflag"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/leastrole"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// roleFlags are the flags of role.
type roleFlags struct {
	missing, unused bool
	since           string
	allow           []string
	impersonator    string
	output          string
}

func (f *roleFlags) bind(flags *pflag.FlagSet) {
	flags.BoolVar(&f.missing, "missing", false, "the roles for what was refused, instead of what was used")
	flags.BoolVar(&f.unused, "unused", false, "what the identity may do, but did not")
	flags.StringVar(&f.since, "since", "", "only what was used since then: a duration such as 24h, or a time (RFC 3339)")
	flags.StringSliceVar(&f.allow, "allow", nil, "what the roles may grant although it gives power over others: the "+
		"words that are printed with it, such as secrets, cluster-wide/nodes, namespace/NAME or bind, with commas")
	flags.StringVar(&f.impersonator, "impersonator", "", "also the roles for this user, who acts as the ServiceAccount "+
		"by constrained impersonation, such as system:serviceaccount:latchkey-system:latchkey")
	flags.StringVarP(&f.output, "output", "o", "", "yaml prints only the roles, to apply")
}

func (f *roleFlags) validate() error {
	switch {
	case f.missing && f.unused:
		return errors.New("--missing or --unused, not both")
	case f.output != "" && f.output != "yaml":
		return errors.Errorf("--output %q: only yaml is possible", f.output)
	case f.unused && (f.output != "" || f.impersonator != "" || len(f.allow) > 0):
		return errors.New("--unused prints no roles: see what could go, and change the roles that grant it")
	case f.missing && f.since != "":
		return errors.New("--since is for what was used; what was refused is kept for an hour")
	}
	return nil
}

// begin returns the time that --since means, zero without it.
func (f *roleFlags) begin(now time.Time) (time.Time, error) {
	if f.since == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(f.since); err == nil {
		return now.Add(-ago), nil
	}
	begin, err := time.Parse(time.RFC3339, f.since)
	return begin, errors.Wrap(err, "--since")
}

// role prints the least roles of an extension's ServiceAccount, or what it does not use.
func (c *cli) role(ctx context.Context, out io.Writer, name string, f roleFlags) error {
	now := time.Now()
	begin, err := f.begin(now)
	if err == nil {
		err = f.validate()
	}
	if err != nil {
		return err
	}
	out = untrusted.Terminal(out)
	connection, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	subject, ok := leastrole.SubjectOf(connection.Status.Source)
	if !ok {
		return errors.Errorf("the connection is not that of a ServiceAccount of this cluster (source %q): grant what it "+
			"needs at its API server, %s", connection.Status.Source, connection.Status.Target)
	}
	r := &report{name: keyOf(connection), command: commandOf(connection), subject: subject, now: now}
	all := []*v1alpha1.Connection{connection}
	if !f.missing {
		all, err = c.siblings(ctx, connection, r)
	}
	if err == nil {
		err = c.collect(ctx, r, all, f.missing)
	}
	if err != nil {
		return err
	}
	r.filter(begin)
	if f.unused {
		return c.unused(ctx, out, r)
	}
	if !f.missing {
		c.addEscalations(ctx, r)
	}
	r.choose(f)
	objects := r.roles(connection, f)
	if err := c.checkForeign(ctx, objects); err != nil && (f.output != "" || !apierrors.IsForbidden(errors.Cause(err))) {
		return err
	}
	r.noteUnknownWords(f.allow)
	text, err := manifest(r.comments(objects), objects)
	if err != nil {
		return err
	}
	if f.output == "" {
		text = r.describe(f, text)
	} else if len(objects) == 0 {
		return errors.New(strings.Join(append([]string{"there is nothing to grant"}, r.leftOutLines()...), "\n"))
	}
	_, err = io.WriteString(out, text)
	return err
}

// siblings returns the connections of the same ServiceAccount, whose permissions are one.
func (c *cli) siblings(ctx context.Context, of *v1alpha1.Connection, r *report) ([]*v1alpha1.Connection, error) {
	connections, err := c.resource("connections", true)
	if err != nil {
		return nil, err
	}
	list, err := listAll[v1alpha1.Connection](ctx, connections, "connections", "")
	if apierrors.IsForbidden(errors.Cause(err)) {
		r.note("Other extensions of the ServiceAccount are not counted: you may not list all connections.")
		return []*v1alpha1.Connection{of}, nil
	}
	if err != nil {
		return nil, err
	}
	all := []*v1alpha1.Connection{of}
	for i := range list {
		one := &list[i]
		if one.UID == of.UID || one.Status.Source != of.Status.Source || one.Status.Target != of.Status.Target {
			continue
		}
		got, err := in(connections, one.Namespace).Get(ctx, one.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		found := &v1alpha1.Connection{}
		if err == nil {
			err = fromUnstructured(got, found)
		}
		if err != nil {
			return nil, errors.Wrap(err, "reading the connections")
		}
		all = append(all, found)
		r.siblings = append(r.siblings, keyOf(found))
	}
	return all, nil
}

// howToRecord says how the operator keeps a record.
const howToRecord = " (Options.Permissions.Record, --record-permissions of latchkey manager)"

// collect adds what is known of the permissions of some connections: their records, and the scopes
// of their caches. Of one that shares its cache another may have the record.
func (c *cli) collect(ctx context.Context, r *report, of []*v1alpha1.Connection, refused bool) error {
	for _, connection := range of {
		record := connection.Status.Permissions
		if record != nil && record.Source != connection.Status.Source { // of an identity of before
			record = nil
		}
		switch {
		case record == nil && refused:
			r.note("Only list and watch are known, because the operator keeps no record%s.", howToRecord)
		case record == nil:
			r.note("Only what is watched now is known of %s, because the operator keeps no record%s, or it was not "+
				"connected yet.", keyOf(connection), howToRecord)
		case record.Incomplete:
			r.note("The record of %s had no room for some permissions.", keyOf(connection))
		}
		if record != nil {
			uses := record.Used
			if refused {
				uses = record.Refused
			}
			for _, use := range uses {
				r.uses = append(r.uses, useOf(use))
			}
		}
		if connection.Status.Scopes == 0 {
			continue
		}
		scopes, err := c.scopesOf(ctx, connection)
		if err != nil {
			return err
		}
		if err := r.addScopes(scopes, refused, c.mapper()); err != nil {
			return err
		}
	}
	return nil
}

// resourcesOfRoles are the kinds of RBAC by the resources on record.
var resourcesOfRoles = []string{"roles", "clusterroles", "rolebindings", "clusterrolebindings"}

// addEscalations adds what RBAC asks of those who write roles and bindings with permissions that
// they do not have, which the record cannot tell.
func (c *cli) addEscalations(ctx context.Context, r *report) {
	for _, u := range slices.Clone(r.uses) {
		if u.Group != rbacv1.GroupName || !slices.Contains(resourcesOfRoles, u.Resource) ||
			!slices.Contains([]string{"create", "update", "patch"}, u.Verb) {
			continue
		}
		r.uses = append(r.uses, c.escalationsOf(ctx, u, r)...)
	}
}

// escalationsOf returns the permissions that a write of roles or bindings may need.
func (c *cli) escalationsOf(ctx context.Context, u use, r *report) []use {
	u.count, u.last = 0, time.Time{}
	if !strings.HasSuffix(u.Resource, "bindings") {
		u.Verb = "escalate"
		return []use{u}
	}
	u.Verb = "bind"
	var found []use
	for _, name := range u.names {
		ref, err := c.roleRef(ctx, u.Resource, u.Namespace, name)
		if err != nil {
			r.note("Which role %s %s names is not known: %v", u.Resource, name, err)
			continue
		}
		of := u
		of.names = []string{ref.Name}
		if of.Resource = "roles"; ref.Kind == "ClusterRole" {
			of.Resource = "clusterroles" // bound in the namespace: permitted there
		}
		found = append(found, of)
	}
	return found
}

// roleRef reads which role a binding names, as the user of this program.
func (c *cli) roleRef(ctx context.Context, resource, namespace, name string) (ref rbacv1.RoleRef, err error) {
	bindings := c.dynamic.Resource(rbacv1.SchemeGroupVersion.WithResource(resource))
	found, err := bindings.Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ref, err
	}
	var binding rbacv1.RoleBinding
	err = fromUnstructured(found, &binding)
	return binding.RoleRef, err
}

// checkForeign returns an error if a role to be applied would overwrite what is not ours.
func (c *cli) checkForeign(ctx context.Context, objects []document) error {
	for _, object := range objects {
		kind := object.GetObjectKind().GroupVersionKind()
		resource := rbacv1.SchemeGroupVersion.WithResource(strings.ToLower(kind.Kind) + "s")
		there := in(c.dynamic.Resource(resource), object.GetNamespace())
		found, err := there.Get(ctx, object.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return errors.Wrapf(err, "looking whether %s %s exists, which must not be overwritten", kind.Kind,
				keyString(object.GetNamespace(), object.GetName()))
		}
		if found.GetLabels()[leastrole.ManagedByLabel] != leastrole.ManagedBy {
			return errors.Errorf("%s %s exists, and does not have the label %s=%s of our roles: it would be overwritten. "+
				"Who made it?", kind.Kind, keyString(object.GetNamespace(), object.GetName()), leastrole.ManagedByLabel,
				leastrole.ManagedBy)
		}
	}
	return nil
}

// asIdentity returns the config of this program's user, who acts as the ServiceAccount.
func (c *cli) asIdentity(namespace, name string) *rest.Config {
	config := rest.CopyConfig(c.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + name}
	return config
}

// commandOf returns the beginning of the command to print for people: with name and namespace.
func commandOf(c *v1alpha1.Connection) string {
	command := "kubectl latchkey role " + c.Name
	if c.Namespace != "" {
		command += " -n " + c.Namespace
	}
	return command
}

// ownerOf returns for whom the roles of a connection are.
func ownerOf(c *v1alpha1.Connection, subject rbacv1.Subject) leastrole.Owner {
	return leastrole.Owner{
		Extension: types.NamespacedName{Namespace: c.Namespace, Name: c.Name},
		Purpose:   "latchkey",
		Subject:   subject,
	}
}

// compareUses sorts uses for people.
func compareUses(x, y use) int {
	return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Group, y.Group),
		cmp.Compare(x.Resource, y.Resource), cmp.Compare(x.Subresource, y.Subresource), cmp.Compare(x.Path, y.Path),
		cmp.Compare(x.Verb, y.Verb))
}

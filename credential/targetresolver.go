package credential

import (
	"context"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// targetResolver resolves extensions that act as a ServiceAccount of the host cluster at a remote
// API server.
type targetResolver struct {
	*serviceAccountResolver
	targets *targets
	tokens  *tokenTargets
	review  *hostReview
}

// Reference implements Resolver.
func (r *targetResolver) Reference(object client.Object) (identity.Reference, error) {
	account, err := r.ServiceAccount(object)
	if err != nil {
		return identity.Reference{}, err
	}
	target, err := r.targets.named(object, account)
	if err != nil {
		return identity.Reference{}, err
	}
	return referenceAt(account, target), nil
}

func referenceAt(account types.NamespacedName, target *foreign) identity.Reference {
	return identity.Reference{
		Name: serviceAccountSource(account) + " at " + canonicalAddress(target.address) + " " + target.key(),
	}
}

// Resolve implements Resolver.
func (r *targetResolver) Resolve(ctx context.Context, object client.Object) (resolved identity.Resolution, err error) {
	account, err := r.ServiceAccount(object)
	if err != nil {
		return resolved, err
	}
	target, targetErr := r.targets.named(object, account)
	resolved, uid, err := r.account(ctx, object)
	if targetErr == nil {
		resolved.Reference = referenceAt(account, target)
		if err != nil && !errors.Is(err, identity.ErrServiceAccountNotFound) {
			return resolved, err // the connection may go on
		}
	}
	if err == nil {
		err = targetErr
	}
	if err == nil {
		err = r.targets.allowed(ctx, object, account, target)
	}
	if err != nil {
		r.tokens.forget(client.ObjectKeyFromObject(object))
		return resolved, err
	}
	id := tokenID{serviceAccount: account, uid: uid, target: target.server(), audience: target.Audience}
	if target.owned {
		id.owner = target.owner()
	}
	target.resolve(id, &resolved)
	resolved.Version = r.tokens.use(client.ObjectKeyFromObject(object), id)
	resolved.OpenFunc = func() identity.Credential { return r.tokens.open(id) }
	return resolved, nil
}

// Forget implements Resolver.
func (r *targetResolver) Forget(extension client.ObjectKey) { r.tokens.forget(extension) }

// Run implements Resolver.
func (r *targetResolver) Run(ctx context.Context, wake func(client.ObjectKey)) {
	defer r.review.close()
	r.tokens.run(ctx, wake)
}

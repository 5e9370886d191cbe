package scopedcache

import "github.com/latchkey-dev/latchkey/scopedcache/internal/objectpool"

// ObjectPool makes caches keep equal objects once, in Options.ObjectPool. It is for caches of
// several identities at one API server that see the same objects: each object of 1 KiB that 1,000
// identities see then takes 1 KiB, and about 150 bytes for each of them, instead of 2 KiB for each
// of them.
//
// An object is shared only if its type, UID, resourceVersion and all of its contents are equal. So
// an identity never sees anything that its own watch did not deliver, even if the API server shows
// different contents to different identities.
//
// Reads return copies, also with UnsafeDisableDeepCopy as an option of a read, and functions of
// field indexes receive copies. Event handlers and indexers that are added to informers receive the
// shared objects. One that changes an object would change what other identities see: it must copy
// the object first, as with any informer. Some methods that look like reads change an object:
// String, AsDec and AsFloat64Slow of resource.Quantity keep their result.
//
// Kinds whose options in cache.Options have UnsafeDisableDeepCopy are not shared, nor are objects
// without UID or resourceVersion, nor those of informers that a cache.Options.NewInformer creates.
//
// An object leaves the pool with the last informer that has it. Use one pool for one API server
// only: different servers share nothing useful, and one could slow the comparisons of the others.
type ObjectPool struct{ objects objectpool.Pool }

// NewObjectPool returns an empty pool.
func NewObjectPool() *ObjectPool { return &ObjectPool{} }

// Len returns the number of different objects in the pool.
func (p *ObjectPool) Len() int { return p.objects.Len() }

// Package objectpool keeps equal objects of many informers once.
package objectpool

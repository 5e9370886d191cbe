// Package replicas has end-to-end tests of several replicas of one host operator, as processes of
// their own: what the fence keeps from the API server, and how replicas share extensions.
package replicas

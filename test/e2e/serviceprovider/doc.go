// Package serviceprovider tests the service-provider runtime end to end: on three real control
// planes, with a test actor that plays the platform.
package serviceprovider

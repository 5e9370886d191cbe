package main

import (
	"flag"

	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// metricsFlags are the flags of the metrics endpoint.
type metricsFlags struct {
	address      string
	secure       bool
	certificates string
	perExtension bool
}

func (f *metricsFlags) bind(flags *flag.FlagSet) {
	flags.StringVar(&f.address, "metrics-bind-address", "127.0.0.1:8080", "address that serves /metrics; 0 disables it")
	flags.BoolVar(&f.secure, "metrics-secure", false,
		"serve /metrics with TLS, to users who may \"get\" the nonResourceURL /metrics; this program then needs "+
			"\"create\" on tokenreviews and subjectaccessreviews")
	flags.StringVar(&f.certificates, "metrics-cert-dir", "",
		"with --metrics-secure: directory with tls.crt and tls.key, read again when they change; empty means a "+
			"self-signed certificate")
	flags.BoolVar(&f.perExtension, "metrics-per-extension", false,
		"also export two series for each extension, with its namespace and name")
}

// options converts the flags. The error names the flag with the invalid value.
func (f *metricsFlags) options() (metricsserver.Options, error) {
	options := metricsserver.Options{BindAddress: f.address, SecureServing: f.secure, CertDir: f.certificates}
	if f.secure {
		options.FilterProvider = filters.WithAuthenticationAndAuthorization
		return options, nil
	}
	if f.certificates != "" {
		return options, errors.New("--metrics-cert-dir needs --metrics-secure")
	}
	return options, nil
}

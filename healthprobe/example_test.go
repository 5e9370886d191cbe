package healthprobe_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/healthprobe"
)

// A program asks an API server whom it takes a config for, without latchkey's connections.
func ExampleAsk() {
	whoami := func(ctx context.Context, config *rest.Config) (string, error) {
		httpClient, err := rest.HTTPClientFor(config)
		if err != nil {
			return "", err
		}
		answer := healthprobe.Ask(ctx, config, httpClient, 5*time.Second)
		return answer.Identity.Username, answer.Err
	}
	_ = whoami
}

// A 403 says nothing about a credential, and a 401 does.
func ExampleClassify() {
	secrets := schema.GroupResource{Resource: "secrets"}
	fmt.Println(healthprobe.Classify(apierrors.NewForbidden(secrets, "s", errors.New("no"))))
	fmt.Println(healthprobe.Classify(apierrors.NewUnauthorized("expired")))
	fmt.Println(healthprobe.Classify(errors.New("connection refused")))
	// Output:
	// Denied
	// Unauthorized
	// Silent
}

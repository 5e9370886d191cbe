package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// targetFlags name a remote API server, and who is to act there.
type targetFlags struct {
	context, account, server, serverName, authority, audience, username string
	statesUID, printAudience                                            bool
}

func (t *targetFlags) bind(flags *flag.FlagSet) {
	config.RegisterFlags(flags)
	flags.StringVar(&t.context, "context", "", "context of the kubeconfig to use, of the cluster with the ServiceAccount")
	flags.StringVar(&t.account, "service-account", "", "who is to act, as NAMESPACE/NAME")
	flags.StringVar(&t.server, "server", "", "address of the remote API server, with https://")
	flags.StringVar(&t.serverName, "tls-server-name", "", "name for which it has a certificate; empty means the host of "+
		"its address")
	flags.StringVar(&t.authority, "certificate-authority", "", "file with its certificate authorities, in PEM")
	flags.StringVar(&t.audience, "audience", "", "audience of the token; empty means the one of these authorities")
	flags.StringVar(&t.username, "username", "", "name that it must state for the ServiceAccount")
	flags.BoolVar(&t.statesUID, "states-uid", false, "it must also state the UID of the ServiceAccount")
	flags.BoolVar(&t.printAudience, "print-audience", false, "print only the audience of these authorities, and request "+
		"nothing")
}

// runCheckTarget goes the way to a remote API server once, and prints what it found. It returns an
// error if a ServiceAccount cannot act there.
func runCheckTarget(ctx context.Context, args []string) error {
	var t targetFlags
	flags := flag.NewFlagSet("latchkey check target", flag.ContinueOnError)
	t.bind(flags)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	klog.SetLogger(logr.Discard()) // the findings have the errors
	target, err := t.target()
	if err != nil {
		return err
	}
	if t.printAudience {
		audience, err := credential.TargetAudience(target)
		if err == nil {
			fmt.Println(audience)
		}
		return err
	}
	namespace, name, ok := strings.Cut(t.account, "/")
	if !ok || namespace == "" || name == "" {
		return errors.New("--service-account must be NAMESPACE/NAME")
	}
	restConfig, err := config.GetConfigWithContext(t.context)
	if err != nil {
		return err
	}
	account := types.NamespacedName{Namespace: namespace, Name: name}
	return printFindings(untrusted.Terminal(os.Stdout), credential.CheckTarget(ctx, restConfig, account, target))
}

// target returns the remote API server.
func (t *targetFlags) target() (credential.Target, error) {
	if t.authority == "" {
		return credential.Target{}, errors.New("--certificate-authority must name the file with the authorities of --server")
	}
	authorities, err := os.ReadFile(t.authority)
	return credential.Target{
		Server:     t.server,
		ServerName: t.serverName,
		CAData:     authorities,
		Audience:   t.audience,
		Username:   func(types.NamespacedName) string { return t.username },
		StatesUID:  t.statesUID,
	}, err
}

// printFindings prints the findings, and returns an error if the last step did not work.
func printFindings(out io.Writer, findings []credential.TargetFinding) error {
	failed := 0
	for _, finding := range findings {
		switch {
		case finding.Err == nil:
			fmt.Fprintln(out, "ok    ", finding.What)
		case finding.Unknown:
			fmt.Fprintf(out, "look   %s: %s\n", finding.What, finding.Err)
		default:
			failed++
			fmt.Fprintf(out, "FAILED %s: %s\n", finding.What, finding.Err)
		}
	}
	if failed > 0 {
		return errors.New("the ServiceAccount cannot act there")
	}
	return nil
}

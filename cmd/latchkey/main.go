// Command latchkey keeps one connection per tenant object, each acting as the ServiceAccount that
// the object names.
//
//	latchkey manager   on any cluster: connect every extension, probe it, log its state
//	latchkey check     on any cluster: connect every extension, print whether it worked, and why not
//	latchkey check target  once: act as a ServiceAccount at an API server that trusts this cluster's issuer
//	latchkey state-api print what the state API of the manager needs in the cluster
//	latchkey demo      on a control plane of its own: show connections start, fail and recover
//	latchkey version   print the version
//
// Run a subcommand with -h for its flags.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // authorities of the web, for images without any: kubeconfigs may need them

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

const usage = `latchkey keeps one connection per tenant object, each acting as the ServiceAccount that the object names.

Usage:
  latchkey manager [flags]   run on the cluster of your kubeconfig
  latchkey check [flags]     connect every extension and print the result; exit with 1 if one is not connected.
                             With --from-state-api: print what the running operator says instead
  latchkey check target [flags]   act once as a ServiceAccount at an API server that trusts this cluster's issuer,
                             and say what is missing
  latchkey state-api manifests [flags]   print what "manager --state-api" needs in the cluster
  latchkey demo [flags]      start a control plane and show how connections start, fail and recover
  latchkey version           print the version

"latchkey <command> -h" lists the flags.
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	var err error
	switch command, args := os.Args[1], os.Args[2:]; command {
	case "manager":
		context.AfterFunc(ctx, stop) // a second signal ends the process at once
		err = runManager(ctx, args)
	case "check":
		context.AfterFunc(ctx, stop)
		err = runCheck(ctx, args)
	case "state-api":
		err = runStateAPI(args)
	case "demo":
		err = runDemo(ctx, args)
	case "version", "--version":
		fmt.Println(version())
	case "-h", "-help", "--help", "help":
		fmt.Print(usage)
	default:
		fmt.Fprintf(os.Stderr, "latchkey: there is no command %q\n\n%s", command, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(untrusted.Terminal(os.Stderr), "latchkey:", err)
		stop()
		os.Exit(1)
	}
}

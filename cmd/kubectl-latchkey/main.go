// Command kubectl-latchkey is a plugin of kubectl, which runs it as "kubectl latchkey". It reads
// the state API (package stateapi).
//
//	kubectl latchkey why EXTENSION    why it is not connected, or what it may not do, and what to do
//	kubectl latchkey role EXTENSION   the least roles for what it used, or was refused; what it does not use
//	kubectl latchkey top              caches by objects or informers
//
// Put the binary into a folder of $PATH. It has the usual flags of kubectl.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/cmd/internal/plugin"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := plugin.Run(ctx, os.Stdout, os.Args[1:])
	stop()
	if errors.Is(err, plugin.ErrUsage) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(untrusted.Terminal(os.Stderr), "kubectl latchkey:", err)
		os.Exit(1)
	}
}

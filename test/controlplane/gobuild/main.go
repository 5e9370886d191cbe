// Command gobuild compiles a program as go build does, and says how far it is:
//
//	go run ./gobuild -C FOLDER -o FILE PACKAGE
//
// It is in this module because the builder of the control plane has the same progress.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/latchkey-dev/latchkey/test/controlplane/compile"
)

func main() {
	dir := flag.String("C", ".", "folder of the module")
	file := flag.String("o", "", "file to write, absolute or seen from the folder")
	flag.Parse()
	if *file == "" || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	progress := compile.NewProgress(filepath.Base(*file), os.Stderr, time.Now)
	if err := compile.Run(ctx, progress, compile.Program{Dir: *dir, Package: flag.Arg(0), File: *file}); err != nil {
		fmt.Fprintln(os.Stderr, "gobuild:", err)
		stop()
		os.Exit(1)
	}
}

package main

import (
	"context"
	"flag"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/cmd/latchkey/demo"
)

func runDemo(ctx context.Context, args []string) error {
	var options demo.Options
	flags := flag.NewFlagSet("latchkey demo", flag.ContinueOnError)
	flags.BoolVar(&options.Once, "once", false, "exit after the tour instead of staying up")
	flags.StringVar(&options.Break, "break", "", "skip the action of this step; the step must then fail. Steps: "+
		strings.Join(demo.Steps(), ", "))
	flags.DurationVar(&options.Patience, "patience", time.Minute,
		"how long a step waits for its expected result before it fails")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		os.Exit(2) // the FlagSet has printed the error
	}
	if flags.NArg() > 0 {
		return errors.Errorf("demo takes no arguments, but got %q", flags.Args())
	}
	if options.Break != "" && !slices.Contains(demo.Steps(), options.Break) {
		return errors.Errorf("--break: there is no step %q; steps are %s", options.Break, strings.Join(demo.Steps(), ", "))
	}
	options.Out = os.Stdout
	return demo.Run(ctx, options)
}

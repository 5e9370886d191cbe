package connstate

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
)

func TestServes(t *testing.T) {
	const protobuf = "application/vnd.kubernetes.protobuf"
	pods := Exchange{
		Path:        "/api/v1/namespaces/n/pods",
		Accept:      []string{"application/json, */*"},
		Status:      http.StatusOK,
		ContentType: "application/json",
	}
	with := func(change func(*Exchange)) Exchange {
		x := pods
		change(&x)
		return x
	}
	status := func(status int) Exchange { return with(func(x *Exchange) { x.Status = status }) }
	got := func(contentType string, accept ...string) Exchange {
		return with(func(x *Exchange) { x.ContentType, x.Accept = contentType, accept })
	}
	for name, tc := range map[string]struct {
		exchange Exchange
		want     bool
	}{
		"200":                           {pods, true},
		"201":                           {status(http.StatusCreated), true},
		"206":                           {status(http.StatusPartialContent), true},
		"100":                           {status(http.StatusContinue), false},
		"300":                           {status(http.StatusMultipleChoices), false},
		"302":                           {status(http.StatusFound), false},
		"304":                           {status(http.StatusNotModified), false},
		"401":                           {status(http.StatusUnauthorized), false},
		"404":                           {status(http.StatusNotFound), false},
		"500":                           {status(http.StatusInternalServerError), false},
		"101 that was not asked for":    {status(http.StatusSwitchingProtocols), false},
		"HTML":                          {got("text/html; charset=utf-8", "application/json, */*"), false},
		"plain text":                    {got("text/plain", "application/json, */*"), false},
		"no type":                       {got("", "application/json, */*"), false},
		"a type of nothing":             {got(";charset=utf-8", "application/json"), false},
		"any type":                      {got("*/*", "application/json, */*"), false},
		"only any type":                 {got("*/*", "*/*"), false},
		"protobuf":                      {got(protobuf, protobuf+", application/json"), true},
		"a watch in protobuf":           {got(protobuf+";stream=watch", protobuf), true},
		"JSON in place of protobuf":     {got("application/json", protobuf+",application/json"), true},
		"JSON that was not asked for":   {got("application/json", protobuf), false},
		"metadata":                      {got("application/json", "application/json;as=Table;v=v1;g=meta.k8s.io"), true},
		"another case":                  {got("Application/JSON", "application/json"), true},
		"two headers":                   {got("application/json", protobuf, "application/json"), true},
		"nothing asked for, JSON":       {got("application/json"), true},
		"nothing asked for, HTML":       {got("text/html"), false},
		"anything asked for, YAML":      {got("application/yaml", "*/*"), true},
		"anything asked for, HTML":      {got("text/html", "*/*"), false},
		"text/* asked for, HTML":        {got("text/html", "text/*"), false},
		"plain text that was asked for": {got("text/plain", "text/plain"), true},
		"an empty Accept":               {got("application/json", ""), true},
		"an upgrade": {with(func(x *Exchange) {
			x.Status, x.Upgrade, x.ContentType = http.StatusSwitchingProtocols, true, ""
		}), true},
		"a review": {with(func(x *Exchange) {
			x.Path, x.Status = "/apis/authentication.k8s.io/v1/selfsubjectreviews", http.StatusCreated
		}), false},
		"an access review below a prefix": {with(func(x *Exchange) {
			x.Path, x.Status = "/k8s/c/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", http.StatusCreated
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(tc.exchange.Serves()).To(Equal(tc.want))
		})
	}
	NewWithT(t).Expect(testing.AllocsPerRun(10, func() { pods.Serves() })).To(BeZero(), "each request pays for it")
}

package credential

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// jwt returns a token with the payload.
func jwt(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

func TestClaims(t *testing.T) {
	for name, tc := range map[string]struct {
		payload string
		problem string // empty: the audience is a
	}{
		"a list of one":          {`{"aud":["a"],"exp":9}`, ""},
		"a string":               {`{"aud":"a","exp":9,"nbf":3,"iat":4}`, ""},
		"two":                    {`{"aud":["a","b"],"exp":9}`, "has 2 audiences"},
		"none":                   {`{"aud":[],"exp":9}`, "has 0 audiences"},
		"an empty one":           {`{"aud":"","exp":9}`, "has no audience"},
		"no audience":            {`{"exp":9}`, "has no audience"},
		"a number":               {`{"aud":[1],"exp":9}`, "has 1 audiences"},
		"another case":           {`{"AUD":"a","exp":9}`, "has no audience"},
		"twice":                  {`{"aud":"a","aud":"b","exp":9}`, "one twice"},
		"twice, in another case": {`{"aud":"a","Aud":"b","exp":9}`, ""},
		"never expires":          {`{"aud":"a"}`, "does not expire"},
		"expires before time":    {`{"aud":"a","exp":-1}`, "exp that is no date"},
		"expires as text":        {`{"aud":"a","exp":"9"}`, "cannot be read"},
		"usable never":           {`{"aud":"a","exp":9,"nbf":1e300}`, "nbf that is no date"},
		"issued never":           {`{"aud":"a","exp":9,"iat":0}`, "iat that is no date"},
		"no JSON":                {`{`, "cannot be read"},
		"more after it":          {`{"aud":"a","exp":9}{}`, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			claims, err := claimsOf(jwt(tc.payload))
			if tc.problem != "" {
				g.Expect(err).To(MatchError(ContainSubstring(tc.problem)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(claims.audience).To(Equal("a"))
			g.Expect(claims.expires).To(Equal(time.Unix(9, 0)))
		})
	}
	g := NewWithT(t)
	claims, err := claimsOf(jwt(`{"aud":"a","exp":9,"nbf":3.5,"iat":3}`))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(claims.usable).To(Equal(time.Unix(3, 5e8)), "the later of both")
	for _, token := range []string{"", "a.b", "a.!.c", "opaque", jwt(`{}`) + "."} {
		_, err := claimsOf(token)
		g.Expect(err).To(HaveOccurred(), token)
	}
}

// FuzzClaims checks that a token is used only if a lax reader, too, finds exactly its one audience.
func FuzzClaims(f *testing.F) {
	for _, payload := range []string{
		`{"aud":["a"],"exp":9}`, `{"aud":"a","exp":9,"nbf":3,"iat":4}`, `{"aud":["a","b"],"exp":9}`,
		`{"aud":"a","aud":"b","exp":9}`, `{"aud":null,"exp":1e9}`, `[]`, `{"aud":{"a":1}}`,
	} {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		claims, err := claimsOf(jwt(payload))
		if err != nil {
			return
		}
		var lax map[string]any
		if err := json.Unmarshal([]byte(payload), &lax); err != nil {
			t.Fatalf("no JSON object: %v", err)
		}
		if found := fmt.Sprint(lax["aud"]); found != claims.audience && found != "["+claims.audience+"]" {
			t.Fatalf("%q, and another reader finds %q", claims.audience, found)
		}
		if claims.expires.Before(time.Unix(0, 0)) || claims.audience == "" {
			t.Fatalf("%+v", claims)
		}
	})
}

package credential

import (
	"encoding/base64"
	"math"
	"strings"
	"time"

	"github.com/pkg/errors"
	"sigs.k8s.io/json"
)

// tokenClaims are what a token for a remote API server says about itself.
type tokenClaims struct {
	audience string
	issuer   string
	// usable is from when on the token may be accepted, zero if the token does not say.
	usable  time.Time
	expires time.Time
}

// leeway is by how much an API server's clock may be before the time in a token that it accepts.
const leeway = time.Minute

// claimsOf reads the claims of a token. The errors contain nothing of the token.
func claimsOf(token string) (claims tokenClaims, err error) {
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != 3 {
		return claims, errors.New("is no JWT, so its audience is unknown")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return claims, errors.New("is no JWT, so its audience is unknown")
	}
	var content struct {
		Audience  any      `json:"aud"`
		Issuer    string   `json:"iss"`
		NotBefore *float64 `json:"nbf"`
		IssuedAt  *float64 `json:"iat"`
		Expires   *float64 `json:"exp"`
	}
	// Names are compared exactly, and a claim that is there twice is an error: readers differ in which
	// one counts.
	strict, err := json.UnmarshalStrict(payload, &content, json.DisallowDuplicateFields)
	if err != nil || len(strict) > 0 {
		return claims, errors.New("has claims that cannot be read, or one twice")
	}
	claims.issuer = content.Issuer
	switch audience := content.Audience.(type) {
	case string:
		claims.audience = audience
	case []any:
		only, ok := any(nil), len(audience) == 1
		if ok {
			only = audience[0]
		}
		if claims.audience, ok = only.(string); !ok {
			return claims, errors.Errorf("has %d audiences, and not one", len(audience))
		}
	}
	if claims.audience == "" {
		return claims, errors.New("has no audience")
	}
	for _, date := range []struct {
		claim string
		value *float64
		set   func(time.Time)
	}{
		{"exp", content.Expires, func(at time.Time) { claims.expires = at }},
		{"nbf", content.NotBefore, func(at time.Time) { claims.usable = at }},
		{"iat", content.IssuedAt, func(at time.Time) {
			if at.After(claims.usable) {
				claims.usable = at
			}
		}},
	} {
		if date.value == nil {
			continue
		}
		if !(*date.value > 0 && *date.value < 1<<40) {
			return claims, errors.Errorf("has a claim %s that is no date", date.claim)
		}
		seconds, fraction := math.Modf(*date.value)
		date.set(time.Unix(int64(seconds), int64(fraction*float64(time.Second))))
	}
	if claims.expires.IsZero() {
		return claims, errors.New("does not expire")
	}
	return claims, nil
}

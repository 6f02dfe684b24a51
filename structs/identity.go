package structs

import "time"

// Limits and defaults of workload identities. Keys stay published for IdentityTTLMax after the last token was signed.
const (
	IdentityTTLDefault = 24 * time.Hour
	IdentityTTLMin     = time.Minute
	IdentityTTLMax     = 7 * 24 * time.Hour

	IdentityDefault  = "default"         // the name of the identity that Nomad's API takes as a token
	IdentityAudience = "nomadproject.io" // its audience
)

// Published reports whether tokens signed with the key may still be valid.
func (k *SigningKey) Published(now LogTime) bool {
	return k.Active || now < k.EndedAt.Add(IdentityTTLMax)
}

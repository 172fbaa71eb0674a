package tidegate

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// wireRule is a rule as GET /v1/rules describes it: what the local share needs of it.
type wireRule struct {
	Name      string         `json:"name"`
	Limits    []string       `json:"limits"`
	Shadow    bool           `json:"shadow"`
	Key       []string       `json:"key"`
	Estimate  int64          `json:"estimate"`
	Deny      []string       `json:"deny"`
	Allow     []string       `json:"allow"`
	Overrides []wireOverride `json:"overrides"`
}

type wireOverride struct {
	Key    Key        `json:"key"`
	Limits []string   `json:"limits"`
	Until  *time.Time `json:"until"`
}

// localRule has limits, lists and overrides of one rule. A rule in shadow mode has none of them.
type localRule struct {
	estimate  int64
	key       []string
	limits    []string
	deny      entries
	allow     entries
	overrides map[string]wireOverride
}

func newLocalRule(rule wireRule) *localRule {
	local := &localRule{estimate: max(1, rule.Estimate), key: rule.Key}
	if rule.Shadow {
		return local
	}
	local.limits = rule.Limits
	local.deny, local.allow = newEntries(rule.Deny, true), newEntries(rule.Allow, false)
	local.overrides = map[string]wireOverride{}
	for _, one := range rule.Overrides {
		local.overrides[local.keyOf(one.Key).text] = one
	}
	return local
}

// notations are all limits that some key may have.
func (r *localRule) notations() map[string]bool {
	all := map[string]bool{}
	for _, notation := range r.limits {
		all[notation] = true
	}
	for _, one := range r.overrides {
		for _, notation := range one.Limits {
			all[notation] = true
		}
	}
	return all
}

// countedKey is a key as the server counts it: a client address in IPv6 by its /64.
type countedKey struct {
	parts []string
	// text differs for keys of different parts.
	text   string
	client netip.Addr
}

func (r *localRule) keyOf(key Key) countedKey {
	counted := countedKey{parts: slices.Clone(key)}
	if len(r.key) == 0 && len(key) == 1 {
		counted.client = addressOf(key[0])
	}
	for i := range counted.parts {
		if i >= len(r.key) || r.key[i] != "client_ip" {
			continue
		}
		address := addressOf(key[i])
		if !address.IsValid() {
			continue
		}
		if !counted.client.IsValid() {
			counted.client = address
		}
		counted.parts[i] = address.String()
		if address.Is6() {
			counted.parts[i] = netip.PrefixFrom(address, 64).Masked().String()
		}
	}
	var text strings.Builder
	for _, part := range counted.parts {
		text.WriteString(strconv.Itoa(len(part)) + ":" + part)
	}
	counted.text = text.String()
	return counted
}

func (r *localRule) limitsOf(key countedKey) []string {
	one, found := r.overrides[key.text]
	if !found || one.Until != nil && !time.Now().Before(*one.Until) {
		return r.limits
	}
	return one.Limits
}

// entries are an allow or deny list: networks match the client address, other entries a key of one
// part. A single address on a deny list matches both.
type entries struct {
	keys     map[string]bool
	networks []netip.Prefix
}

func newEntries(texts []string, isDeny bool) entries {
	list := entries{keys: map[string]bool{}}
	for _, text := range texts {
		network := networkOf(text)
		if network.IsValid() {
			list.networks = append(list.networks, network)
		}
		if !network.IsValid() || isDeny && !strings.Contains(text, "/") {
			list.keys[text] = true
		}
	}
	return list
}

func (e entries) has(key countedKey) bool {
	if len(key.parts) == 1 && e.keys[key.parts[0]] {
		return true
	}
	return key.client.IsValid() && slices.ContainsFunc(e.networks, func(network netip.Prefix) bool {
		return network.Contains(key.client)
	})
}

// addressOf is the address in a text, not valid if there is none; IPv4 in IPv6 is IPv4.
func addressOf(text string) netip.Addr {
	address, err := netip.ParseAddr(text)
	if err != nil || address.Zone() != "" {
		return netip.Addr{}
	}
	return address.Unmap()
}

func networkOf(text string) netip.Prefix {
	host, length, hasLength := strings.Cut(text, "/")
	address := addressOf(host)
	if !address.IsValid() {
		return netip.Prefix{}
	}
	bits := address.BitLen()
	if hasLength {
		bits, _ = strconv.Atoi(length)
		if address.Is4() && strings.Contains(host, ":") {
			// The length of an IPv4 network that is written in IPv6 counts 96 bits more.
			bits -= 96
		}
	}
	return netip.PrefixFrom(address, bits).Masked()
}

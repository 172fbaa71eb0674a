//go:build tools

// Package ratelimit pins the version of envoyproxy/ratelimit that bench/peers/run builds.
package ratelimit

import _ "github.com/envoyproxy/ratelimit/src/service_cmd"

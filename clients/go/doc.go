// Package tidegate is a client of the Tidegate rate limiter.
//
// A [Client] keeps connections to a server and serves a whole process. [Client.Limiter] names a
// rule, with Allow, Wait and Reserve as in golang.org/x/time/rate; [Client.Check] checks several
// rules at once, all or none; [Middleware] limits an [net/http.Handler].
//
// A call takes at most [Options].Deadline, 150 ms by default. What a check without an answer means
// is set by [Options].OnNoAnswer.
package tidegate

// Version of the client, which is that of the server.
const Version = "0.1.0"

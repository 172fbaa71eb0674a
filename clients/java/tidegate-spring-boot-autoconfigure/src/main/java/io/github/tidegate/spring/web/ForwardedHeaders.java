package io.github.tidegate.spring.web;

import java.util.Collection;
import java.util.Locale;
import java.util.Set;
import java.util.stream.Collectors;

/** Which headers of a request are sent to the server, for rules that match or count by them. */
final class ForwardedHeaders {
    private final Set<String> dropped;

    ForwardedHeaders(Collection<String> dropped) {
        this.dropped =
            dropped.stream().map(name -> name.toLowerCase(Locale.ROOT)).collect(Collectors.toSet());
    }

    boolean keeps(String name) {
        return !dropped.contains(name.toLowerCase(Locale.ROOT));
    }
}

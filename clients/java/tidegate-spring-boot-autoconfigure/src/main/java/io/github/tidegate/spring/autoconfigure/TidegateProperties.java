package io.github.tidegate.spring.autoconfigure;

import io.github.tidegate.client.OnNoAnswer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * Properties of the client and of the web filter.
 *
 * @param enabled Whether anything is limited; false turns off annotations and filters.
 * @param url Address of the server's HTTP listener.
 * @param respUrl Address of the server's RESP listener, such as redis://127.0.0.1:6380; with it and
 *     Lettuce, checks of one limit are sent over RESP.
 * @param token Token of the server.
 * @param deadline How long a call waits for an answer.
 * @param startupWait How long the start waits for the server.
 * @param onNoAnswer What a check without an answer means: a local share of the limit, allow, or
 *     deny.
 * @param localShare Share of each limit that this process enforces by itself without an answer.
 * @param limits Limits by rule, until the server is reached for the first time.
 * @param filter Check of every request by the rules of the policy.
 */
@ConfigurationProperties("tidegate")
public record TidegateProperties(@DefaultValue("true") boolean enabled,
        @DefaultValue("http://127.0.0.1:8080") String url, String respUrl, String token,
        @DefaultValue("150ms") Duration deadline, @DefaultValue("2s") Duration startupWait,
        @DefaultValue("local") OnNoAnswer onNoAnswer, @DefaultValue("0.5") double localShare,
        @DefaultValue Map<String, List<String>> limits, @DefaultValue Filter filter) {
    /**
     * Properties of the web filter.
     *
     * @param enabled Whether every request is checked by the rules of the policy that match it.
     * @param localLimit Limit for each client address, such as 100/s, of which a share is enforced
     *     without an answer; required with on-no-answer local.
     * @param dropHeaders Headers that are not sent to the server, such as a cost that clients could
     *     forge.
     * @param order Place among the filters.
     */
    public record Filter(@DefaultValue("false") boolean enabled, String localLimit,
            @DefaultValue List<String> dropHeaders, @DefaultValue("-100") int order) {}
}

package io.github.tidegate.spring.web;

import io.github.tidegate.client.RateLimitedException;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.Order;
import org.springframework.http.HttpHeaders;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.RestControllerAdvice;

/** Answers denied calls of {@code @RateLimit} methods with 429, in MVC and in WebFlux. */
@RestControllerAdvice
@Order(Ordered.LOWEST_PRECEDENCE - 100)
public class RateLimitedExceptionHandler {
    /** Makes the handler. */
    public RateLimitedExceptionHandler() {}

    /**
     * The response to a denial.
     *
     * @param denied the denial
     * @return 429 with problem details
     */
    @ExceptionHandler
    public ResponseEntity<byte[]> denied(RateLimitedException denied) {
        DenialResponse response = DenialResponse.of(denied.decision());
        HttpHeaders headers = new HttpHeaders();
        response.headers().forEach(headers::set);
        return ResponseEntity.status(response.status()).headers(headers).body(response.body());
    }
}

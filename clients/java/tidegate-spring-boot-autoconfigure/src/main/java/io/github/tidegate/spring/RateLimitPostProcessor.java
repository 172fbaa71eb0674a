package io.github.tidegate.spring;

import io.github.tidegate.client.TidegateClient;
import java.lang.reflect.Method;
import java.util.concurrent.Executor;
import java.util.concurrent.ForkJoinPool;
import org.springframework.aop.framework.autoproxy.AbstractBeanFactoryAwareAdvisingPostProcessor;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.StaticMethodMatcherPointcut;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.util.function.SingletonSupplier;

/**
 * Applies {@link RateLimit} to beans, before transactions and other advice. An invalid annotation
 * fails the start of the application.
 */
public final class RateLimitPostProcessor extends AbstractBeanFactoryAwareAdvisingPostProcessor {
    private static final String TASK_EXECUTOR = "applicationTaskExecutor";

    /** Makes the processor; the client is looked up at the first call of a limited method. */
    public RateLimitPostProcessor() {
        setBeforeExistingAdvisors(true);
        // As Spring Boot does: beans with interfaces can still be injected by their class.
        setProxyTargetClass(true);
    }

    @Override
    public void setBeanFactory(BeanFactory beans) {
        super.setBeanFactory(beans);
        RateLimitInterceptor interceptor = new RateLimitInterceptor(beans,
            SingletonSupplier.of(() -> beans.getBean(TidegateClient.class)),
            SingletonSupplier.of(() -> beans.containsBean(TASK_EXECUTOR)
                ? beans.getBean(TASK_EXECUTOR, Executor.class) : ForkJoinPool.commonPool()));
        this.advisor = new DefaultPointcutAdvisor(new StaticMethodMatcherPointcut() {
            @Override
            public boolean matches(Method method, Class<?> targetClass) {
                return interceptor.limits(method, targetClass).isPresent();
            }
        }, interceptor);
    }
}
